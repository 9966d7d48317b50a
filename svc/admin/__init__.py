"""Administration of a datastore and of an installation: plain functions, for the command line and for controllers."""
