"""svcctl, the command line: plain functions on a datastore, and the commands that call them."""
