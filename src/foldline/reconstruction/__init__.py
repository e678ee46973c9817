"""Training data out of a network: from its weights, or from the span that its explanations reveal."""
