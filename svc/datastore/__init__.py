"""Datastore interface (`Backend`) and its implementations."""
