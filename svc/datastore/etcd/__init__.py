"""etcd v3 store. It is imported only if it is configured, because gRPC needs more memory than the rest of svc on a node."""
