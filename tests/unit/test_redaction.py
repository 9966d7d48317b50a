"""Removal of secrets from diagnostics: each kind of secret, in each form in which files and logs have it."""

import time

import pytest

from svc.admin.redaction import REMOVED, redacted

SECRET = "hunter2correcthorse"
JWT = "eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJzeXN0ZW0ifQ.c2lnbmF0dXJl"
PEM = "\n".join(["-----BEGIN {0}-----", "MIIEvQIBADANBgkqhkiG9w0BAQEFAASC" * 2, "BKcwggSjAgEAAoIBAQ==", "-----END {0}-----"])
PLANTED = {  # text, and what must not remain
    "JSON field": (f'{{"k8s_auth_token": "{SECRET}", "name": "net"}}', SECRET),
    "JSON field with a quote in it": (f'{{"password": "a\\"{SECRET}", "name": "net"}}', SECRET),
    "JSON in JSON": (f'{{"config": "{{\\"token\\": \\"{SECRET}\\", \\"name\\": \\"net\\"}}"}}', SECRET),
    "YAML field": (f"users:\n- user:\n    token: {SECRET}\n  name: net\n", SECRET),
    "YAML with spaces": (f"password: correct {SECRET} battery\nname: net\n", SECRET),
    "YAML block": (f"client-secret: |\n  line\n  {SECRET}\nname: net\n", SECRET),
    "YAML on the next line": (f"token:\n  {SECRET}\nname: net\n", SECRET),
    "kubeconfig key": ("client-key-data: LS0tLS1CRUdJTiBSU0E=\nname: net\n", "LS0tLS1CRUdJTiBSU0E"),
    "kubeconfig certificate": ("client-certificate-data: LS0tLS1CRUdJTiBDRVI=\nname: net\n", "LS0tLS1CRUdJTiBDRVI"),
    "environment": (f"AWS_SECRET_ACCESS_KEY={SECRET} name=net", SECRET),
    "ini file": (f"PrivateKey = {SECRET}\nname = net\n", SECRET),
    "command line": (f"svc-tool --token {SECRET} --name net", SECRET),
    "command line with =": (f"svc-tool --client-secret={SECRET} --name net", SECRET),
    "bearer header": (f"Authorization: Bearer {SECRET}\nname: net", SECRET),
    "basic header in JSON": (f'{{"Authorization": "Basic {SECRET}==", "name": "net"}}', SECRET),
    "cookie": (f"Set-Cookie: session={SECRET}; Path=/\nname: net", SECRET),
    "header of a proxy": (f"X-Auth-Token: {SECRET}\nname: net", SECRET),
    "bearer in an error": (f"GET /api failed with header Bearer {SECRET}: name net", SECRET),
    "user and password of URLs": (f'{{"urls": "https://root:{SECRET}@h:1,http://u:{SECRET}@h:2/x", "name": "net"}}', SECRET),
    "password with @ in a URL": (f"http://root:pa@{SECRET}@host:1/ name net", SECRET),
    "query of a URL": (f'readiness_gates: ["http://gate:80/ready?key={SECRET}&a=b"] name net', SECRET),
    "fragment of a URL": (f"http://gate/ready#{SECRET} name net", SECRET),
    "JSON Web Token": (f"refused {JWT} name net", JWT),
    "private key": (PEM.format("RSA PRIVATE KEY") + "\nname net", "MIIEvQIBADAN"),
    "private key in JSON": (f'{{"pem": "{PEM.format("EC PRIVATE KEY")}", "name": "net"}}'.replace("\n", "\\n"), "MIIEvQIBADAN"),
    "end of a private key": (PEM.format("OPENSSH PRIVATE KEY").partition("\n")[2] + "\nname net", "MIIEvQIBADAN"),
    "begin of a private key": ("name net\n" + PEM.format("PRIVATE KEY").rpartition("\n")[0], "MIIEvQIBADAN"),
    "key of a cloud": ("user AKIAIOSFODNN7EXAMPLE name net", "AKIAIOSFODNN7EXAMPLE"),
    "token of a service": ("remote ghp_16C7e42F292c6912E7710c838347Ae178B4a name net", "ghp_16C7"),
    "bootstrap token": ("joined with 07401b.f395accd246ae52d name net", "07401b.f395accd246ae52d"),
    "hash of a password": ("root:$6$rounds=5000$saltsalt$abcdefghijklmnop:1 name net", "abcdefghijklmnop"),
    "key of WireGuard": ("peer yAnz5TF+lXXJte14tji3zlMNq+hd2rYUIgJBgB3fBmk= name net", "yAnz5TF"),
    "encoded value": ("data " + "Q29ycmVjdEhvcnNl" * 20 + " name net", "Q29ycmVjdEhvcnNl"),
}  # fmt: skip


@pytest.mark.parametrize(("text", "secret"), PLANTED.values(), ids=PLANTED.keys())
def test_secret_is_removed_and_its_neighbour_stays(text: str, secret: str) -> None:
    shown = redacted(text)
    assert secret not in shown
    assert REMOVED in shown
    assert "net" in shown
    assert redacted(shown).count(REMOVED) == shown.count(REMOVED)


@pytest.mark.parametrize(
    "text",
    [
        '{"tokens": [{"server": "API server https://10.0.0.1:6443", "expires": 1795436710.0, "seconds_left": null}]}',
        '"token_file": "/var/run/secrets/token", "k8s_client_key": "/etc/pki/key.pem"',
        "2026-11-23 12:18:43.908 INFO [04f6e461] verb=ADD container=" + "3f" * 32 + " network=net ok 10.65.0.1/32 ipam=4.64",
        "svc046ed43e92e@if2: <BROADCAST,MULTICAST,UP> mtu 1500 link/ether ee:ee:ee:ee:ee:ee",
        "default via 192.0.2.254 dev uplink proto static metric 100",
        "fe80::/64 dev svc046ed43e92e proto kernel metric 256 pref medium",
        "etcd http://127.0.0.1:2379 does not answer: see whether it runs",
        "/usr/lib/python3/svc/agent/server.py:258 _next_job",
        '{"handle": "k8s-pod-network.' + "3f" * 32 + '", "boot_id": "cd1e3c59-8287-4bb7-825d-b14fe65a960b"}',
    ],
)
def test_other_text_is_unchanged(text: str) -> None:
    assert redacted(text) == text


def test_large_text_takes_little_time() -> None:
    """A report has 12 MB at most, and 15 s."""
    line = f"2026-11-23 12:18:43.908 INFO [04f6e461] verb=ADD container={'3f' * 32} network=net ok token=x\n"
    began = time.process_time()
    redacted(line * (2_000_000 // len(line)))
    redacted("a-b.c_d=" * 100_000)
    redacted("A" * 1_000_000)
    assert time.process_time() - began < 5
