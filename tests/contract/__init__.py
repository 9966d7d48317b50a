"""Tests that every datastore must pass."""
