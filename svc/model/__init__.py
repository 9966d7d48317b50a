"""Typed resources, their names and their JSON shapes. No I/O."""
