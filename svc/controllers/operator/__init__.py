"""The controller `operator`: a cluster is what its Installation asks for."""
