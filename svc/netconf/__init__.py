"""What users write: the network configuration and CNI_ARGS. Parsed strictly, all faults in one error."""
