"""A model behind a real HTTP API, with its defences as switches: the victim of the demo and the tests."""
