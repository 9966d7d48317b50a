"""Routes between nodes: the program svc-routes."""
