"""The part of controller `node` that releases the addresses of pods and nodes that no longer exist."""
