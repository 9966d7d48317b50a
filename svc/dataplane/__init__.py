"""The kernel's side of an attachment: a plan, one batch in the host, one in the sandbox; checks; removal."""
