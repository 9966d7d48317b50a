"""The names of files in the spool, computed without the executable: the twin of `name_file` in `_core/shim_spool.c`."""

_BEGIN, _PRIME = 0xCBF29CE484222325, 0x100000001B3  # FNV-1a with 64 bits


def file_name(profile: str, network: bytes, container: str, ifname: str) -> str:
    """Return the name of the file for a DEL. `network` is the name as the network configuration has it, with its escapes."""
    number = _BEGIN
    for byte in b"\0".join((profile.encode(), network, container.encode(), ifname.encode(), b"")):
        number = (number ^ byte) * _PRIME % (1 << 64)
    return f"{number:016x}"
