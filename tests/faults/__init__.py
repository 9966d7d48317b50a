"""Fault bench: a node that is killed at random while it adds and deletes containers: `python -m faults`."""
