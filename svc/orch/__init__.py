"""Data of workloads and nodes from the Kubernetes API."""
