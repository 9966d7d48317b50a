"""What the servers of a datastore count themselves: requests by kind, bytes that they send, and their processor time."""

import os
import re
from collections import Counter
from pathlib import Path
from urllib.request import urlopen

from harness.etcd import Cluster
from harness.kube import Kube

Counts = Counter[str]

_ETCD = re.compile(r'^grpc_server_started_total\{grpc_method="(Range|Put|Txn|DeleteRange)".*\} (\d+)', re.M)
_ETCD_SENT = re.compile(r"^etcd_network_client_grpc_sent_bytes_total (\S+)", re.M)
_ORCH = re.compile(
    r'^apiserver_request_total\{(?:[^}]*,)?resource="([a-z]+)"[^}]*verb="(GET|LIST|POST|PUT|PATCH|DELETE)"[^}]*\} (\d+)', re.M
)
_ORCH_SENT = re.compile(r'^apiserver_response_sizes_sum\{[^}]*resource="([a-z]+)"[^}]*\} (\S+)', re.M)
_OURS = {"pods", "namespaces", "ippools", "ipamblocks", "ipamhandles", "blockaffinities", "clusterinformations", "nodes"}


def etcd_requests(etcd: Cluster) -> Counts:
    """Return the requests that etcd has got so far, by kind."""
    return Counter({name: int(number) for name, number in _ETCD.findall(_etcd_metrics(etcd))})


def etcd_sent(etcd: Cluster) -> float:
    """Return the bytes that etcd has sent to its clients so far."""
    return sum(map(float, _ETCD_SENT.findall(_etcd_metrics(etcd))))


def orch_requests(kube: Kube) -> Counts:
    """Return the requests for objects that svc reads or writes, by verb and resource."""
    found = Counter[str]()
    for resource, verb, number in _ORCH.findall(kube.text("/metrics")):
        if resource in _OURS:
            found[f"{verb} {resource}"] += int(number)
    return found


def orch_sent(kube: Kube) -> float:
    """Return the bytes of the answers to reads of these objects."""
    return sum(float(number) for resource, number in _ORCH_SENT.findall(kube.text("/metrics")) if resource in _OURS)


def processor_seconds(pid: int) -> float:
    """Return the processor time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _etcd_metrics(etcd: Cluster) -> str:
    with urlopen(f"http://127.0.0.1:{etcd.members[0].ports[2]}/metrics") as reply:
        text: str = reply.read().decode()
    return text
