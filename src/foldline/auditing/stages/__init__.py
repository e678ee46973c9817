"""One file per method: what it asks, and how its result is told."""
