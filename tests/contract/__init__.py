"""The suite that every datastore passes."""
