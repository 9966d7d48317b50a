"""Rows of the journal."""

from svc.attach.record import ADDED, AttachmentId, Record

ID = AttachmentId("net", "c1", "eth0")


def record(key: AttachmentId = ID, state: str = ADDED, host_name: str = "svc0") -> Record:
    """Return a row with every field."""
    return Record(
        id=key, state=state, boot_id="boot", sandbox=(4, 2**40), node="node1", settings={"kind": "embedded"},
        host_name=host_name, mac="02:00:00:00:00:aa", pod="pod", namespace="ns", mtu=1400, queues=2,
        allow_ip_forwarding=True, addresses=["10.65.0.7"], host_index=7, peer_index=2, result={"cniVersion": "1.1.0"},
    )  # fmt: skip
