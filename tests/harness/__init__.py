"""What tests, the demo and the benchmarks share: throw-away nodes and sandboxes, and a runtime that calls plugins."""
