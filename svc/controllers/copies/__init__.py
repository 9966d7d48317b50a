"""Controllers that copy from Kubernetes to another datastore: `policy`, `namespace`, `serviceaccount`, `workloadendpoint`."""
