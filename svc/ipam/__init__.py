"""IP address management (IPAM): pools, blocks, affinities and handles, stored in any Backend."""
