"""Moves of a datastore to one of another kind. Each step can be repeated after a kill."""
