"""svc: a container network plugin (CNI) with its own address management, agent and command line."""

__distribution__ = "svc-cni"  # as the package indexes know it: `svc` there is another project

__version__: str


def __getattr__(name: str) -> str:
    """Looks the version up when somebody asks: importing importlib.metadata costs 25 ms and 2 MiB, in every one-shot call."""
    if name != "__version__":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    version = globals()["__version__"] = installed_version()  # an upgrade does not change what runs
    return version


def installed_version() -> str:
    """Return the version of the package that is on the disk now."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(__distribution__)
    except PackageNotFoundError:  # a source tree that was never installed
        return "0.0.0"
