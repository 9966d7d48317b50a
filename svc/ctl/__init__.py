"""The command line svcctl."""
