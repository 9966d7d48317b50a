"""Errors never show tokens, or user, password and query of URLs."""

from typing import Any

import orjson
import pytest

from svc.model.errors import CallerError
from svc.names import DEFAULT
from svc.netconf.netconf import parse

SECRET = "s3cr3t" + "x" * 100  # longer than the part of a value that an error shows
URL = f"https://admin:{SECRET}@10.0.0.1:2379"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("policy", [{"k8s_auth_token": SECRET}]),
        ("policy", SECRET),
        ("policy", {"k8s_auth_token": [SECRET]}),
        ("policy", {"type": "orch", "k8s_auth_token": SECRET}),
        ("etcd_endpoints", [URL]),
        ("etcd_endpoints", {"a": {"b": URL}}),
        ("orch", {"orch_api_root": URL}),
        ("orch", [URL]),
        ("readiness_gates", [URL]),
        ("readiness_gates", [f"ftp://10.0.0.1/ready?token={SECRET}"]),
        ("readiness_gates", [f"http://10.0.0.1/not ready?token={SECRET}"]),
        ("readiness_gates", {"a": f"http://10.0.0.1/ready#{SECRET}"}),
        ("datastore_type", URL),
        ("args", {"org.apache.mesos": {"network_info": {"labels": {"labels": [URL]}}}}),
    ],
)
def test_error_shows_no_secret(field: str, value: Any) -> None:
    """It does not show the start of the secret either."""
    config = {"name": "net", "type": "svc", "datastore_type": "embedded", "ipam": {"type": "svc-ipam"}, field: value}
    with pytest.raises(CallerError) as caught:
        parse(orjson.dumps(config), DEFAULT)
    assert SECRET[:6] not in str(caught.value)
