"""What svc needs on a node and in a cluster: the systemd unit, resource definitions and rights."""
