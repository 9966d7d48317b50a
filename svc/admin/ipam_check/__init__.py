"""Comparison of the IPAM documents of a datastore with each other, and with what uses the addresses."""
