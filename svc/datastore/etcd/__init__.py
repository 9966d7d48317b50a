"""The etcd v3 store. Loaded only where it is asked for: gRPC takes more memory than all the rest of a node."""
