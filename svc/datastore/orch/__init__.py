"""The orchestrator's API server as a datastore: custom resources, pods and nodes."""
