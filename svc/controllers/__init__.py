"""The cluster-wide program svc-controllers: it writes to the datastore what follows from objects of the Kubernetes API."""
