"""Students trained to match what a target answers: values, gradients, explanations."""
