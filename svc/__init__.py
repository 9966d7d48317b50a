"""svc: a container network plugin (CNI) with its own IPAM, agent and command line."""

__distribution__ = "svc-cni"  # the name on package indexes, where `svc` is another project

__version__: str


def __getattr__(name: str) -> str:
    """Look up `__version__` on first use: importing importlib.metadata costs 25 ms and 2 MiB in every one-shot call."""
    if name != "__version__":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    version = globals()["__version__"] = installed_version()  # cached: an upgrade does not change the running code
    return version


def installed_version() -> str:
    """Return the version of the installed package."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(__distribution__)
    except PackageNotFoundError:  # a source tree that is not installed
        return "0.0.0"
