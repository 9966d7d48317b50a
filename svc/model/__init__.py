"""Typed resources, their names and their JSON forms. No I/O."""
