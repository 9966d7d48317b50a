"""Upgrades of a cluster as plan, apply, verify and undo."""
