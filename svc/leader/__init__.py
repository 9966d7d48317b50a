"""One leader among processes: a Lease of the Kubernetes API, and the state of each process in the election."""
