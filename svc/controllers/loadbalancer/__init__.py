"""The controller `loadbalancer`."""
