"""The kernel's side of an attachment: a plan, a netlink batch in the host and one in the sandbox, checks, and removal."""
