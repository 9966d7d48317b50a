"""The protocol edge: versions, the environment, results and errors as the runtime reads them."""
