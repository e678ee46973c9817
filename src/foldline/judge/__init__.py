"""The only code that sees the truth: how close a result came to it."""
