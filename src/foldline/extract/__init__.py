"""Recovering functions from queries: affine models, hidden units from gradients or values, and learning."""
