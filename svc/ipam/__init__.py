"""Address management: pools, blocks, affinities and handles on any Backend."""
