"""Where the addresses of an attachment come from: pools, another IPAM plugin, the caller, or another attachment's interface."""
