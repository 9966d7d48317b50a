"""Fuzzers of everything that svc reads from others: `python -m fuzz`."""
