"""The resident agent: what it is asked, by whom, and in which order."""
