"""The Backend protocol and the stores that speak it."""
