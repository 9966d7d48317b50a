"""The verbs: what is done for an attachment, in which order, and how it is undone."""
