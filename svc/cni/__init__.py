"""Protocol edge: versions, environment, results and errors in the form that the runtime expects."""
