"""The compiled core: allocation bitmaps, CIDR matching, netlink packing, and the few system calls they need.

Sources are in the top-level `_core/` folder; this package holds what Python sees of them. It is pure: it imports
nothing of `svc`, logs nothing and reads no clock.
"""
