"""What brings svc into a cluster: one model of objects, from which manifests, chart and kustomize folder are made."""
