"""Waits of an ADD: readiness gates, and the setup of the pod's policy (specification, R6 and R7)."""
