"""One node for all of them: it takes a while to start."""
