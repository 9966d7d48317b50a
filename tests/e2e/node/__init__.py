"""Tests on one shared real node, because its start is slow."""
