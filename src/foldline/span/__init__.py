"""The span of the first layer: found from values, gradients or labels, and what hides in its null space."""
