"""The resident agent: its socket, admission queue, workers and periodic tasks."""
