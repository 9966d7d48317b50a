"""User input: network configuration, CNI_ARGS and annotations, parsed strictly, with all field errors in one exception."""
