"""One look at all allocations: which are leaked as far as the tables show. Pure."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from svc.admin.ipam_check.owners import POD, TUNNEL, is_of_one, network_of
from svc.controllers.node.addresses.held import Held, is_own
from svc.controllers.node.addresses.judgement import LEAKED, Facts, containers_of, judge
from svc.controllers.pods import PodRow
from svc.values import dataclass, field


@dataclass(slots=True)
class Survey:
    """What one look shows. `leaked` has the reason for each address of `suspects`.

    `siblings` are all allocations of the pods of these, and `tunnels` the addresses of tunnels, by node. `busy` are the nodes
    with other addresses that are not leaked. `networks` are those whose allocations have endpoints, `bare_networks` those in
    which a running pod has an address and no endpoint.
    """

    total: int = 0
    suspects: dict[str, Held] = field(default_factory=dict)
    leaked: dict[str, str] = field(default_factory=dict)
    kept: set[str] = field(default_factory=set)  # handles of suspects with an address that is not leaked
    siblings: Mapping[str, Sequence[Held]] = field(default_factory=dict)
    tunnels: dict[str, list[Held]] = field(default_factory=dict)
    busy: set[str] = field(default_factory=set)
    networks: frozenset[str] = frozenset()
    bare_networks: set[str] = field(default_factory=set)


def survey(facts: Facts, allocations: Sequence[Held], assumed: str = "") -> Survey:
    """Judge all allocations. A handle is kept if one of its addresses is not leaked.

    `assumed` is a network that counts as one with endpoints unless its pods show the contrary.
    """
    found = Survey(total=len(allocations))
    learned = set(facts.networks)
    doubtful = [held for held in allocations if not _is_plainly_used(held, facts, learned, found)]
    found.networks = frozenset(learned)
    facts.networks = found.networks | ({assumed} - found.bare_networks)
    pods = {held.pod for held in doubtful}
    siblings = _by_pod(allocations, pods)
    for held in doubtful:
        rows = facts.endpoints_by_pod.get(held.pod, ())
        verdict = judge(held, facts, facts.pods.get(held.pod), rows, siblings[held.pod])
        if verdict.state == LEAKED:
            found.suspects[held.address] = held
            found.leaked[held.address] = verdict.reason
        else:
            found.busy.add(held.node)
    handles = {held.handle for held in found.suspects.values()}
    found.kept = {held.handle for held in allocations if held.handle in handles and held.address not in found.leaked}
    found.siblings = {pod: siblings[pod] for pod in {held.pod for held in found.suspects.values()}}
    return found


def _is_plainly_used(held: Held, facts: Facts, learned: set[str], found: Survey) -> bool:
    """Return whether an allocation needs no closer look: it is of a running pod whose endpoints name its container, or none.

    Learn from it which networks have endpoints.
    """
    if held.kind == TUNNEL:
        found.tunnels.setdefault(held.node, []).append(held)
        return True
    row = facts.pods.get(held.pod) if held.kind == POD else None
    if row is None or row.is_finished or row.node != facts.kube_name(held.node):
        is_judged = held.kind == POD
        if is_judged:
            _learn(held, facts, None, learned)
        else:
            found.busy.add(held.node)
        return not is_judged
    containers = containers_of(held.node, row, facts.endpoints_by_pod.get(held.pod, ()))
    is_shown = is_of_one(held.handle, [containers])
    if not _learn(held, facts, row, learned) and (is_shown or not containers):
        found.bare_networks.add(network_of(held.handle))
    if is_shown or not containers:
        found.busy.add(held.node)
        return True
    return False


def _learn(held: Held, facts: Facts, row: PodRow | None, learned: set[str]) -> bool:
    """Learn that the network of an allocation has endpoints: one has the address. Return whether that is so.

    That the container has an endpoint does not show it: that may be one of another network.
    """
    own = (each for each in facts.endpoints_by_pod.get(held.pod, ()) if held.address in each.addresses)
    is_wired = any(is_own(held, each) for each in own) or (row is not None and held.address in row.addresses[: row.wired])
    if is_wired and (network := network_of(held.handle)):
        learned.add(network)
    return is_wired


def _by_pod(allocations: Iterable[Held], pods: set[str]) -> Mapping[str, Sequence[Held]]:
    found: defaultdict[str, list[Held]] = defaultdict(list)
    for held in allocations:
        if held.pod in pods:
            found[held.pod].append(held)
    return found
