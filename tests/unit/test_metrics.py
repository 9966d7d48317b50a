"""Metrics of a process: what calls count, and what is read of it."""

import gc
from concurrent.futures import ThreadPoolExecutor
from time import perf_counter

import pytest

from svc.agent.exposition import exposition
from svc.agent.metric_families import BY_SAMPLE, FAMILIES
from svc.metrics import GET, LIST, SECONDS, WRITE, Metrics, StoreMeter
from svc.metrics.families import GAUGE, HISTOGRAM, PREFIX, PROCESS


class Session:
    """A datastore session that sends nothing."""

    def __init__(self) -> None:
        self.meter = StoreMeter()


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


def samples(metrics: Metrics, prefix: str = "") -> list[str]:
    lines = [line for line in exposition(metrics).splitlines() if not line.startswith("#")]
    return [line.removeprefix(PREFIX) for line in lines if line.removeprefix(PREFIX).startswith(prefix)]


def opened(metrics: Metrics, kind: str = "etcdv3") -> Session:
    session = Session()
    metrics.add_store(kind, session, session.meter)
    return session


def test_calls_are_counted_by_verb_and_outcome(metrics: Metrics) -> None:
    for code, seconds in ((0, 0.0002), (0, 0.002), (7, 100.0)):
        metrics.call_ended("ADD", code, seconds, {})
    assert samples(metrics, "calls_total") == [
        'calls_total{verb="ADD",outcome="ok"} 2',
        'calls_total{verb="ADD",outcome="error"} 1',
    ]
    assert samples(metrics, "errors_total") == ['errors_total{code="7"} 1']


def test_histogram_counts_each_value_in_its_bucket_and_all_above(metrics: Metrics) -> None:
    """A value that equals a bound is in the bucket of that bound. The last bucket has all values."""
    for seconds in (0.0001, SECONDS[0], 0.0003, 89.0, 91.0):
        metrics.queued(seconds)
    buckets = dict(line.removeprefix("queue_seconds_bucket").split() for line in samples(metrics, "queue_seconds_bucket"))
    assert list(buckets) == [f'{{le="{bound!r}"}}' for bound in SECONDS] + ['{le="+Inf"}']
    assert [buckets[f'{{le="{bound}"}}'] for bound in ("0.00025", "0.001", "10.0", "90.0", "+Inf")] == ["2", "3", "3", "4", "5"]
    assert samples(metrics, "queue_seconds_count") == ["queue_seconds_count 5"]
    (total,) = samples(metrics, "queue_seconds_sum")
    assert float(total.split()[1]) == pytest.approx(180.00065)


def test_phases_are_summed_in_seconds(metrics: Metrics) -> None:
    metrics.call_ended("DEL", 0, 0.1, {"unwire": 10.0, "queue": 2.0})
    metrics.call_ended("DEL", 0, 0.1, {"unwire": 30.0})
    assert samples(metrics, "call_phase_seconds") == [
        'call_phase_seconds_sum{verb="DEL",phase="unwire"} 0.04',
        'call_phase_seconds_count{verb="DEL",phase="unwire"} 2',
        'call_phase_seconds_sum{verb="DEL",phase="queue"} 0.002',
        'call_phase_seconds_count{verb="DEL",phase="queue"} 1',
    ]


def test_counters_without_labels_begin_with_0(metrics: Metrics) -> None:
    """Prometheus sees no increase from an absent counter to 1."""
    found = samples(metrics)
    for name in ("queue_seconds_sum", "queue_seconds_count", "package_changes_total", "ipam_conflicts_total"):
        assert [float(line.split()[1]) for line in found if line.startswith(f"{name} ")] == [0.0]


def test_requests_are_counted_by_their_outcome(metrics: Metrics) -> None:
    """A failed one has no time: that would be its timeout."""
    meter = opened(metrics).meter
    meter.ended(GET, perf_counter())
    meter.ended(GET, perf_counter())
    meter.failed(GET)
    meter.conflicted()
    assert samples(metrics, "store_requests_total") == [
        'store_requests_total{store="etcdv3",op="get",outcome="ok"} 2',
        'store_requests_total{store="etcdv3",op="get",outcome="error"} 1',
        'store_requests_total{store="etcdv3",op="write",outcome="ok"} 0',
        'store_requests_total{store="etcdv3",op="write",outcome="conflict"} 1',
        'store_requests_total{store="etcdv3",op="write",outcome="error"} 0',
    ]
    assert 'store_request_seconds_count{store="etcdv3",op="get"} 2' in samples(metrics)
    assert not [line for line in samples(metrics) if 'op="list"' in line]


def test_store_is_up_if_each_session_was_served(metrics: Metrics) -> None:
    """A refusal for lack of a right is an answer. A conflict is one too."""
    one, two = opened(metrics), opened(metrics)
    one.meter.failed(LIST, is_up=True)
    assert samples(metrics, "store_up") == ['store_up{store="etcdv3"} 1']
    two.meter.failed(WRITE)
    two.meter.ended(GET, perf_counter())
    assert samples(metrics, "store_up") == ['store_up{store="etcdv3"} 0']
    two.meter.conflicted()
    assert samples(metrics, "store_up") == ['store_up{store="etcdv3"} 1']


def test_failure_counts_until_the_same_operation_succeeds_or_it_is_old(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a full disk reads succeed. A node without calls does not repeat a failed write."""
    meter, now, found = StoreMeter(), [1000.0], []
    monkeypatch.setattr("svc.metrics.monotonic", lambda: now[0])
    meter.failed(WRITE)
    meter.ended(GET, perf_counter())
    for seconds in (0, 119, 2):
        now[0] += seconds
        found.append(meter.is_up)
    assert found == [False, False, True]
    meter.failed(WRITE)
    meter.ended(WRITE, perf_counter())
    assert meter.is_up


def test_numbers_of_an_ended_session_are_kept(metrics: Metrics) -> None:
    """Its state is not: a datastore that is not open is neither up nor down."""
    session = opened(metrics)
    session.meter.ended(WRITE, perf_counter())
    session.meter.batch(3)
    session.meter.ipam_conflicts += 2
    before = samples(metrics)
    assert "ipam_conflicts_total 2" in before
    assert 'ipam_batch_requests_bucket{le="4.0"} 1' in before
    del session
    gc.collect()
    assert samples(metrics) == [line for line in before if not line.startswith("store_up")]
    second = opened(metrics)
    second.meter.ended(WRITE, perf_counter())
    assert 'store_requests_total{store="etcdv3",op="write",outcome="ok"} 2' in samples(metrics)


def test_threads_lose_no_count(metrics: Metrics) -> None:
    def count_many() -> None:
        for _ in range(2000):
            metrics.count("gate_waits_total", outcome="ready")
            metrics.call_ended("ADD", 0, 0.01, {"kernel": 1.0})

    with ThreadPoolExecutor(8) as threads:
        for _ in range(8):
            threads.submit(count_many)
    found = samples(metrics)
    for line in (
        'gate_waits_total{outcome="ready"} 16000',
        'calls_total{verb="ADD",outcome="ok"} 16000',
        'call_phase_seconds_count{verb="ADD",phase="kernel"} 16000',
    ):
        assert line in found


def test_label_values_are_escaped(metrics: Metrics) -> None:
    metrics.count("gate_waits_total", outcome='a"b\\c\nd')
    assert samples(metrics, "gate") == [r'gate_waits_total{outcome="a\"b\\c\nd"} 1']


def test_collectors_are_read_with_the_counters(metrics: Metrics) -> None:
    metrics.collectors.append(lambda: [("queue_depth", (), 5), ("process_open_fds", (), 3)])
    assert metrics.read()["queue_depth", ()] == 5
    assert "process_open_fds 3" in exposition(metrics).splitlines()


def test_each_sample_belongs_to_one_family() -> None:
    assert len(BY_SAMPLE) == sum(len(family.samples) for family in FAMILIES)


def test_names_follow_the_rules_of_prometheus() -> None:
    for family in FAMILIES:
        assert family.name.endswith("_total") == (family.type == "counter")
        assert family.type != HISTOGRAM or family.unit in ("seconds", "requests")
        assert family.help.endswith(".")
        assert family.full_name.startswith((PREFIX, PROCESS))
        assert family.type == GAUGE or not family.name.endswith("_bytes")


def test_text_has_help_and_type_of_every_family(metrics: Metrics) -> None:
    lines = [line for line in exposition(metrics).splitlines() if line.startswith("#")]
    for family, help_line, kind in zip(FAMILIES, lines[::2], lines[1::2], strict=True):
        assert help_line == f"# HELP {family.full_name} {family.help}"
        assert kind == f"# TYPE {family.full_name} {family.type}"


def test_largest_node_has_few_series(metrics: Metrics) -> None:
    """Two datastores, 20 pools, every verb with both outcomes, every phase, 30 error codes."""
    phases = ("queue", "gates", "datastore", "endpoint", "ipam", "journal", "kernel", "pod_cidrs", "policy")
    for verb in ("ADD", "DEL", "CHECK", "GC", "STATUS", "VERSION"):
        own = {"ADD": phases, "DEL": ("queue", "unwire", "datastore", "journal")}.get(verb, ("queue",))
        metrics.call_ended(verb, 0, 0.1, dict.fromkeys(own, 1.0))
        if verb != "VERSION":
            metrics.call_ended(verb, 101, 0.1, {})
    for code in range(100, 120):
        metrics.call_ended("ADD", code, 0.1, {})
    for kind in ("embedded", "etcdv3"):
        session = opened(metrics, kind)
        for operation in (GET, LIST, WRITE):
            session.meter.ended(operation, perf_counter())
    pools = [(("pool", f"pool{number}"),) for number in range(20)]
    states = [(*pool, ("state", state)) for pool in pools for state in ("allocated", "cooldown", "free")]
    gauges = [("ipam_addresses", state, 1) for state in states] + [("ipam_blocks", pool, 1) for pool in pools]
    metrics.collectors.append(lambda: [*gauges, *(("ipam_pool_addresses", pool, 1) for pool in pools)])
    single = sum(family.type == GAUGE for family in FAMILIES) + 15  # other gauges, outcomes of waits, states, errors of netlink
    assert len(samples(metrics)) + single <= 600
