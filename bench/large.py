"""Address management in a large cluster on one machine, as functions of the number of nodes, with real servers.

The nodes are names: their address management, svc's own code, runs in worker processes (`bench.large_nodes`). In each cluster:

1. claims: each node gets the first address, for which it claims a block
2. fill: each node gets addresses for the rest of its pods; after that the bytes of all documents are counted
3. borrowing: some nodes get more than their blocks have. A node may have one block, so they borrow
4. exhaustion: the rest is assigned, and further requests are refused
5. wave: a tenth of the nodes is lost with their pods, and svc-controllers releases what they have

Then the datastore itself is measured (`bench.large_limit`).
"""

from collections.abc import Iterator, Mapping

from bench.growth_law import fit
from bench.large_limit import limit
from bench.large_nodes import Fleet, Order, Tally, fleet
from bench.large_site import BLOCK_SIZE, GrownCluster, LargeSite, large_site
from bench.large_wave import ASKING_SECONDS, QUIET_SECONDS, Wave, wave
from bench.measurement import Figure, Sample
from bench.options import VERSIONS, Options
from bench.server_counts import Counts
from svc.model.keys import BlockQuery

HUNGRY = 20  # one of so many nodes borrows
MOST_HUNGRY = 20  # nodes
AT_ONCE = 4  # of the nodes that borrow: each lists all blocks, so that more of them measure how long the server makes them wait
BORROWED = 6  # addresses of such a node in the blocks of others
REFUSED = 20  # requests after the exhaustion
KEPT = 500  # single values of a long measurement in the results
LOST = 10  # one of so many nodes is lost


def run_etcd(options: Options) -> Iterator[Figure]:
    yield from _run("etcd", options)


def run_orch(options: Options) -> Iterator[Figure]:
    yield from _run("orch", options)


def _run(kind: str, options: Options) -> Iterator[Figure]:
    costs: dict[str, dict[int, float]] = {}
    for nodes in options.large_nodes:
        with large_site(kind) as site:  # new servers: with a long history they are slower
            yield from _Cluster(site, nodes, options).figures(costs)
    with large_site(kind) as site:
        yield from limit(site, options)
    yield from laws(kind, costs)


def laws(kind: str, costs: Mapping[str, Mapping[int, float]]) -> Iterator[Figure]:
    """Yield the growth laws of costs by the number of nodes. A cost without three positive values has no law."""
    for name, by_nodes in costs.items():
        positive = {nodes: cost for nodes, cost in by_nodes.items() if cost > 0}
        if len(positive) >= 3:
            law = fit([*positive], [*positive.values()])
            note = f"{law.name}: {law.exponent:.2f} ± {law.spread:.2f}"
            sample = Sample(law.exponent, None, (law.exponent,))
            yield Figure(f"large_{kind}_law", "exponent", sample, len(positive), note=note, parameters={"of": name})


class _Cluster:
    """The measurements of one cluster."""

    def __init__(self, site: LargeSite, nodes: int, options: Options) -> None:
        self._site = site
        self._nodes = nodes
        self._pods = options.large_pods
        self._at_once = min(options.large_at_once, nodes)
        self._taken: dict[tuple[int, int], str] = {}
        self._costs: dict[str, dict[int, float]] = {}

    def figures(self, costs: dict[str, dict[int, float]]) -> Iterator[Figure]:
        self._costs = costs
        self._site.furnish(self._nodes)
        with fleet(self._site.settings, self._pods, self._at_once) as workers:
            yield from self._claims(workers)
            yield from self._fill(workers)
            yield from self._borrow(workers)
            yield from self._exhaust(workers)
        yield from self._wave()

    def _claims(self, workers: Fleet) -> Iterator[Figure]:
        done, requests, sent, server = self._measured(workers, dict.fromkeys(range(self._nodes), range(1)))
        self._note(claim_seconds=done.seconds, claim_requests=requests, claim_bytes=sent)
        note = f"{self._at_once} nodes at once; {_per(done, server, self._nodes)}"
        yield self._figure("claims", "s", done.seconds, note)
        yield self._figure("claim", "ms", 0, samples=Sample.of(done.ms))
        yield self._figure("claim_requests", "requests a node", requests / self._nodes)
        yield self._figure("claim_sent", "KiB a node", sent / 1024 / self._nodes)
        yield self._figure("claim_conflicts", "conflicts a node", done.costs["conflicts"] / self._nodes)

    def _fill(self, workers: Fleet) -> Iterator[Figure]:
        pods = self._nodes * (self._pods - 1)
        done, requests, _, server = self._measured(workers, dict.fromkeys(range(self._nodes), range(1, self._pods)))
        self._note(fill_seconds=done.seconds, fill_requests=requests)
        yield self._figure("fill", "pods/s", pods / done.seconds, _per(done, server, pods))
        yield self._figure("fill_call", "ms", 0, samples=_thinned(done.ms))
        yield self._figure("fill_requests", "requests a pod", requests / pods)
        yield self._figure("fill_conflicts", "conflicts a pod", done.costs["conflicts"] / pods)
        stored = self._site.stored_bytes()
        self._note(stored_bytes=stored)
        yield self._figure("stored", "MiB", stored / 2**20, f"{stored / len(self._taken):.0f} bytes a pod")

    def _borrow(self, workers: Fleet) -> Iterator[Figure]:
        numbers = range(self._pods, BLOCK_SIZE + BORROWED)
        hungry = range(min(max(2, self._nodes // HUNGRY), MOST_HUNGRY))
        done, requests, sent, _ = self._measured(workers, dict.fromkeys(hungry, numbers), AT_ONCE)
        borrowed = sorted(done.ms)[-len(hungry) * BORROWED :]  # the others come from the nodes' own blocks
        self._note(borrow_ms=Sample.of(borrowed).p50)
        note = f"{len(borrowed)} addresses of {len(hungry)} nodes, {AT_ONCE} at once; {done.costs['conflicts']} conflicts"
        yield self._figure("borrow", "ms", 0, note, samples=Sample.of(borrowed))
        yield self._figure("borrow_requests", "requests an address", requests / len(borrowed))
        yield self._figure("borrow_sent", "KiB an address", sent / 1024 / len(borrowed))

    def _exhaust(self, workers: Fleet) -> Iterator[Figure]:
        """Fill each block by its own node, which lists nothing; then ask for more."""
        first = BLOCK_SIZE + BORROWED
        done, *_ = self._measured(workers, {node: range(first, first + free) for node, free in self._free().items() if free})
        if done.refused:
            raise AssertionError(f"{len(done.refused)} pods got no address, although their nodes' blocks had one")
        nodes = range(min(REFUSED, self._nodes))
        done, requests, sent, _ = self._measured(workers, dict.fromkeys(nodes, range(first + 100, first + 101)))
        if len(done.refused) != len(nodes):
            raise AssertionError(f"only {len(done.refused)} of {len(nodes)} requests were refused")
        self._note(refusal_ms=Sample.of(done.ms).p50, refusal_bytes=sent / len(nodes))
        note = f"{len(nodes)} requests at once; {len(self._taken)} addresses are used"
        yield self._figure("refusal", "ms", 0, note, samples=Sample.of(done.ms))
        yield self._figure("refusal_requests", "requests each", requests / len(nodes))
        yield self._figure("refusal_sent", "KiB each", sent / 1024 / len(nodes))

    def _free(self) -> dict[int, int]:
        """Return the number of free addresses in the block of each node."""
        found = dict[int, int]()
        for entry in self._site.store.list(BlockQuery()):
            block = entry.value
            found[int((block.affinity or "").removeprefix("host:node"))] = block.cidr.size - block.ordinals.used
        return found

    def _wave(self) -> Iterator[Figure]:
        lost = range(self._nodes - self._nodes // LOST, self._nodes)
        done = wave(self._site, GrownCluster(self._nodes, self._pods, self._taken), lost)
        self._note(wave_seconds=done.seconds, wave_requests=done.requests.total())
        yield self._figure("wave", "s", done.seconds, _of_wave(done))
        yield self._figure(
            "wave_requests", "requests a pod", done.requests.total() / done.pods, _named(done.requests, done.pods)
        )

    def _measured(
        self, workers: Fleet, pods: Mapping[int, range], at_once: int | None = None
    ) -> tuple[Tally, int, float, float]:
        """Return what the nodes did, so many at once, and the requests, bytes sent and processor seconds of the servers."""
        site, done, nodes = self._site, Tally(), [*pods]
        requests, sent, used = site.requests(), site.sent(), site.processor_seconds()
        step = at_once or max(1, len(nodes))
        for first in range(0, len(nodes), step):
            part = workers.carry_out(Order({node: pods[node] for node in nodes[first : first + step]}))
            done.add(part)
            done.seconds += part.seconds
        self._taken |= done.addresses
        return done, (site.requests() - requests).total(), site.sent() - sent, site.processor_seconds() - used

    def _note(self, **costs: float) -> None:
        for name, value in costs.items():
            self._costs.setdefault(name, {})[self._nodes] = value

    def _figure(self, name: str, unit: str, value: float, note: str = "", *, samples: Sample | None = None) -> Figure:
        parameters = {"nodes": self._nodes}
        sample = samples or Sample(value)
        full = f"large_{self._site.kind}_{name}"
        return Figure(full, unit, sample, self._nodes, note=note, versions=VERSIONS, parameters=parameters)


def _per(done: Tally, server_seconds: float, number: int) -> str:
    """Return the processor time of nodes and servers in milliseconds for one of so many."""
    own, server = 1000 * done.processor_seconds / number, 1000 * server_seconds / number
    return f"processor time: nodes {own:.2f} ms each, servers {server:.2f} ms"


def _thinned(values: list[float]) -> Sample:
    """Return the median and 95th percentile of all values, and keep some hundred of them."""
    whole = Sample.of(values)
    return Sample(whole.p50, whole.p95, tuple(sorted(values)[:: max(1, len(values) // KEPT)]))


def _of_wave(done: Wave) -> str:
    return (
        f"{done.nodes} nodes with {done.pods} pods; {QUIET_SECONDS:g} s of observation in place of 10 minutes, and looks "
        f"{ASKING_SECONDS:g} s apart in place of 60, are included; "
        f"processor time of svc-controllers {done.processor_seconds:.1f} s"
    )


def _named(requests: Counts, number: int) -> str:
    return ", ".join(f"{what} {found / number:.2f}" for what, found in sorted(requests.items()) if found >= number / 100)
