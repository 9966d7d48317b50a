"""The verbs: the steps for an attachment, their order and their rollback."""
