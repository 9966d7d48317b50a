"""The Installation resource: its rules, what a cluster must have because of it, and how that is brought about."""
