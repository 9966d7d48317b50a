"""Handles: the IDs that group the allocations of one container in one network.

The form is NETWORK.CONTAINER, with each dot of the network's name doubled. A container ID starts with a letter or a
digit, so the first odd run of dots separates the two. Two pairs therefore never have the same handle.

A deployment may require the plain form with single dots (`Names.plain_handles`), and earlier releases always wrote it. Several
pairs can then have the same handle, and only the journal shows which pair a handle belongs to.
"""

from collections.abc import Iterator

from svc.model.endpoint import Workload
from svc.names import Names


def handle_of(names: Names, network: str, container_id: str) -> str:
    """Return the handle of a new attachment."""
    return plain_handle(network if names.plain_handles else network.replace(".", ".."), container_id)


def plain_handle(network: str, container_id: str) -> str:
    """Return the form without doubled dots."""
    return f"{network}.{container_id}"


def older_handle(names: Names, network: str, workload: Workload) -> str:
    """Return the form that earlier releases of the deployment's plugin wrote, if it differs; empty otherwise."""
    if names.plain_handles:
        return f"{workload.namespace}.{workload.pod}" if workload.is_pod else workload.container_id
    return plain_handle(network, workload.container_id) if "." in network else ""


def container_of(names: Names, network: str, handle: str) -> str:
    """Return the container that has the handle in this network; empty if it is of another network, or ambiguous."""
    prefix = handle_of(names, network, "")
    container = handle.removeprefix(prefix)
    if container == handle or not container[:1].isalnum():
        return ""
    return "" if names.plain_handles and "." in container else container


def is_ambiguous(names: Names, network: str, container_id: str) -> bool:
    """Return whether another pair may have the same handle, in the plain form or in a row of an earlier build."""
    return "." in container_id or (names.plain_handles and "." in network)


def pairs_of(handle: str) -> Iterator[tuple[str, str]]:
    """Yield network and container of every pair whose plain form is this handle."""
    for place, char in enumerate(handle):
        if char == "." and place and handle[place + 1 : place + 2].isalnum():
            yield handle[:place], handle[place + 1 :]
