"""What an ADD may have to wait for: readiness gates, and the set-up of the pod's policy (specification, R6 and R7)."""
