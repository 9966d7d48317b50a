"""Log lines of calls on disk: appending, rotation, compression and removal."""
