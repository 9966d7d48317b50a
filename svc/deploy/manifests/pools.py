"""The pools that a deployment creates."""

from collections.abc import Sequence

from svc._core.cidr import Cidr
from svc.model.resource import Resource


def pools_of(ranges: Sequence[str]) -> list[Resource]:
    """Return a pool for each range, which must be a CIDR."""
    families = [Cidr(text) for text in ranges]
    return [Resource("IPPool", {"name": f"default-ipv{cidr.version}-ippool"}, {"cidr": str(cidr)}) for cidr in families]
