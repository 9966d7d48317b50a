"""The parts of the controller `node`."""
