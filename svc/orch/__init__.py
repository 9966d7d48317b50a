"""What the orchestrator says of workloads."""
