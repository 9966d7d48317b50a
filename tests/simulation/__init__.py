"""Simulation of processes that attach and detach containers, under every fault that svc promises to survive.

The code of `svc.attach`, the journal, `svc.ipam` and the embedded store is the real one. The kernel, the remote datastores, the
agent's life cycle and the runtime are models. They are short enough to read, because they serve as the specification. See
`README.md` here.
"""
