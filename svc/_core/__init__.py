"""The compiled core: allocation bitmaps, CIDR matching, netlink packing, and the few system calls they need.

The sources are in the top-level directory `_core/`. This package declares what they offer: the stubs (`.pyi`) to Python, the
`.pxd` files to each other. The core imports nothing else of `svc`, logs nothing and reads no clock.
"""
