"""What may be asked of a target, and at what price."""
