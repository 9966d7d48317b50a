"""Permanent neighbours and fdb entries of own VXLAN devices: one of each for every node at the other end."""

import os
from collections.abc import Iterable, Mapping
from typing import Any

from svc._core import netns, rtnl
from svc.dataplane.kernel import query
from svc.routes.wanted import IPIP, VXLAN_V6, TunnelPeer

Pairs = set[tuple[bytes, bytes]]


def bring(socket: netns.Socket, peers: Iterable[TunnelPeer], indexes: Mapping[str, int], *, may_delete: bool) -> list[str]:
    """Write what is missing or different, neighbours first; delete other entries with `may_delete`.

    Return a sentence for each kind of tunnel with refused messages. Raise PeerError, or OSError if answers were lost."""
    problems = []
    for kind, index in indexes.items():
        if kind == IPIP:
            continue
        mine = [peer for peer in peers if peer.kind == kind]
        batch = rtnl.Batch()
        _neighbours(socket, batch, kind, index, {(peer.address.packed, peer.mac) for peer in mine}, may_delete=may_delete)
        _entries(socket, batch, index, {(peer.mac, peer.underlay.packed) for peer in mine}, may_delete=may_delete)
        refusals = socket.execute_each(batch) if len(batch) else []
        if refusals:
            first = refusals[0]
            text = f"{first.label}: {os.strerror(first.errno or 0)}"
            problems.append(f"the kernel refused {len(refusals)} entries for nodes behind tunnel {kind!r}, such as {text}")
    return problems


def _neighbours(socket: netns.Socket, batch: rtnl.Batch, kind: str, index: int, wanted: Pairs, *, may_delete: bool) -> None:
    request = rtnl.Batch()
    request.dump_neighbours(rtnl.AF_INET6 if kind == VXLAN_V6 else rtnl.AF_INET, index)
    present = _permanent(socket, request, index)
    found = {(item["address"], item["mac"]) for item in present}
    for address, mac in sorted(wanted - found):
        batch.add_neighbour(index, address, mac)
    if may_delete:
        for address in sorted({address for address, _ in found} - {address for address, _ in wanted}):
            batch.delete_neighbour(index, address)


def _entries(socket: netns.Socket, batch: rtnl.Batch, index: int, wanted: Pairs, *, may_delete: bool) -> None:
    request = rtnl.Batch()
    request.dump_fdb(index)
    found = {(item["mac"], item["address"]) for item in _permanent(socket, request, index)}
    for mac, remote in sorted(wanted - found):
        batch.add_fdb(index, mac, remote)
    if may_delete:
        replaced = {mac for mac, _ in wanted - found}  # by the message above
        for mac, remote in sorted(found - wanted):
            if mac not in replaced:
                batch.delete_fdb(index, mac, remote)


def _permanent(socket: netns.Socket, request: rtnl.Batch, index: int) -> list[dict[str, Any]]:
    items = map(rtnl.unpack_neighbour, query(socket, request))
    return [item for item in items if item["index"] == index and item["state"] & rtnl.NUD_PERMANENT]
