"""What a cluster must have before the plugin works there: resource definitions and rights."""
