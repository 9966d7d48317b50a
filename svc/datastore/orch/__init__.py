"""Kubernetes API as a datastore: custom resources, pods and nodes."""
