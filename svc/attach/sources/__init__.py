"""Address sources: pools, another IPAM plugin, annotations, or another attachment's interface."""
