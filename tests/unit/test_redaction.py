"""Removal of secrets from diagnostics: each kind of secret, in each form in which files and logs have it."""

import json
import time
from typing import Any

import pytest

from svc.admin.redaction import redacted
from svc.admin.secret_values import REMOVED

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
    "object in a log line": (f'sent {{"auth":{{"token":["{SECRET}"]}},"tokens":{{"a":"{SECRET}"}}}} name net', SECRET),
    "array of a header": (f"headers {{'X-Auth-Token': ['{SECRET}']}} name net", SECRET),
    "array over lines": (f'name net {{\n  "tokens": [\n    "{SECRET}"\n  ]', SECRET),
    "array without its end": (f'name net "tokens": ["a", "{SECRET}', SECRET),
    "object in JSON in JSON": (f'x {{"c": "{{\\"auth\\": {{\\"a\\": [\\"{SECRET}\\"]}}, \\"name\\": \\"net\\"}}"}}', SECRET),
    "array of YAML": (f"tokens:\n- {SECRET}\n- x{SECRET}\nname: net\n", SECRET),
    "object of YAML": (f"auth:\n  user: a\n  more:\n    b: {SECRET}\nname: net\n", SECRET),
    "option in an array of YAML": (f"args:\n- --password\n- {SECRET}\nname: net\n", SECRET),
    "variable of YAML": (f"env:\n- name: DB_PASSWORD\n  value: {SECRET}\nname: net\n", SECRET),
    "user option": (f"curl -u admin:{SECRET} name net", SECRET),
    "long user option": (f"etcdctl --user root:{SECRET} name net", SECRET),
    "user option with =": (f"etcdctl --user=root:{SECRET} name net", SECRET),
    "digest": (f'Authorization: Digest username="u", response="{SECRET}"\nname net', SECRET),
    "digest in JSON": (f'sent {{"h": "Digest username=\\"u\\", response=\\"{SECRET}\\""}} name net', SECRET),
    "arrow": (f"token => {SECRET} name net", SECRET),
    "name before quotes": (f'api-key "{SECRET}" name net', SECRET),
    "sentence": (f'login failed with password "{SECRET}" name net', SECRET),
    "auth": (f"auth={SECRET} name=net", SECRET),
    "pass": (f"pass: {SECRET}, name net", SECRET),
    "pw": (f"pw={SECRET} name=net", SECRET),
    "escaped bearer": (f"header bearer%20{SECRET} name net", SECRET),
    "value on the next line": (f"password=\n{SECRET}\nname net", SECRET),
    "word on the next line": (f"password:\n{SECRET}\nname net", SECRET),
    "user and password without a scheme": (f"dial root:{SECRET}@10.0.0.1:2379 name net", SECRET),
    "password with / in a URL": (f"https://u:a/{SECRET}@h/ name net", SECRET),
    "query of a path": (f"GET /api/v1/pods?watch={SECRET} name net", SECRET),
    "query of an address": (f"dial 10.0.0.1:2379?x={SECRET} name net", SECRET),
    "query without a scheme": (f"GET //h/p?sig={SECRET} name net", SECRET),
    "webhook": (f"POST https://hooks.example.com/services/T0/{SECRET} name net", SECRET),
    "webhook path": (f"POST https://example.com/api/webhooks/1/{SECRET} name net", SECRET),
    "kubeadm token": ("kubeadm join --token=abcdef.0123456789abcdef name net", "abcdef.0123456789abcdef"),
    "kubeadm token alone": ("joined_abcdef.0123456789abcdef name net", "0123456789abcdef"),
    "quotes without an end": (f'name net token: "{SECRET} b', SECRET),
}  # fmt: skip
DOCUMENTS = {  # fields of a document
    "array": {"tokens": [SECRET]},
    "object": {"auth": {"token": [SECRET], "user": SECRET}},
    "objects": {"secrets": {"a": {"b": SECRET}}},
    "number": {"password": 847261},
    "headers": {"headers": {"X-Auth-Token": [SECRET]}},
    "authorization": {"Authorization": [f'Digest username="u", response="{SECRET}"']},
    "words": {"args": ["--user", f"root:{SECRET}", "-u", f"a:{SECRET}", "--password", SECRET, f"--token={SECRET}"]},
    "short option": {"args": ["-p", SECRET]},
    "variable": {"env": [{"name": "DB_PASSWORD", "value": SECRET}]},
    "variable, the value first": {"env": [{"value": SECRET, "name": "DB_PASSWORD"}]},
    "endpoint": {"endpoint": f"root:{SECRET}@10.0.0.1:2379"},
    "path": {"path": f"/x?sig={SECRET}"},
    "pass": {"pass": SECRET},
    "pw": {"pw": SECRET},
    "key": {"key": SECRET},
    "keys": {"keys": [SECRET]},
    "basic_auth": {"basic_auth": {"username": "u", "x": SECRET}},
    "basicAuth": {"basicAuth": SECRET},
    "webhook": {"webhook_path": f"/services/T0/{SECRET}"},
    "JSON in JSON": {"config": f'{{"auth": {{"a": ["{SECRET}"]}}}}'},
    "expiry beside a token": {"tokens": [{"server": "h", "expires": 1.0, "seconds_left": 1.0, "x": SECRET}]},
}


@pytest.mark.parametrize("indent", [None, 1])
@pytest.mark.parametrize("opening", ["", "/etc/cni/net.d/10-svc.conflist\n", "sent "])
@pytest.mark.parametrize("fields", DOCUMENTS.values(), ids=DOCUMENTS.keys())
def test_secret_of_a_document_is_removed_and_its_neighbour_stays(
    fields: dict[str, Any], opening: str, indent: int | None
) -> None:
    """In a part of its own, in a file, and behind other words."""
    text = opening + json.dumps({"first": "net1", **fields, "last": "net2"}, indent=indent)
    shown = redacted(text)
    assert SECRET not in shown
    assert "847261" not in shown
    assert ("net1" in shown, "net2" in shown, REMOVED in shown) == (True, True, True)
    assert redacted(shown) == shown
    if opening != "sent ":
        assert json.loads(shown.removeprefix(opening))["last"] == "net2"


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
        '{"args": ["-p", "8080:80/tcp", "-p", "443", "-p", "/run/x"]}',
        '{"tokens": [{"server": "API server https://10.0.0.1:6443", "expires": 1795436710.0, "seconds_left": null}]}',
        '"token_file": "/var/run/secrets/token", "k8s_client_key": "/etc/pki/key.pem"',
        "2026-11-23 12:18:43.908 INFO [04f6e461] verb=ADD container=" + "3f" * 32 + " network=net ok 10.65.0.1/32 ipam=4.64",
        "svc046ed43e92e@if2: <BROADCAST,MULTICAST,UP> mtu 1500 link/ether ee:ee:ee:ee:ee:ee",
        "default via 192.0.2.254 dev uplink proto static metric 100",
        "fe80::/64 dev svc046ed43e92e proto kernel metric 256 pref medium",
        "etcd http://127.0.0.1:2379 does not answer: see whether it runs",
        "/usr/lib/python3/svc/agent/server.py:258 _next_job",
        '{"etcd_key_file": "/etc/etcd/key.pem", "kubeconfig": "/etc/cni/net.d/svc-kubeconfig", "key": "/etc/pki/node.key"}',
        "etcd_key_file = /etc/etcd/key.pem",
        "etcd_cert_file: /etc/etcd/cert.pem\nkubeconfig: /root/.kube/config\n",
        '{"passwords": null, "token": "", "keys": [], "auth": false}',
        '{"handle": "k8s-pod-network.' + "3f" * 32 + '", "boot_id": "cd1e3c59-8287-4bb7-825d-b14fe65a960b"}',
    ],
)
def test_other_text_is_unchanged(text: str) -> None:
    assert redacted(text) == text


LINE = f"2026-11-23 12:18:43.908 INFO [04f6e461] verb=ADD container={'3f' * 32} network=net ok token=x\n"


@pytest.mark.parametrize("pattern", [LINE, "a-b.c_d=", "A"], ids=["log", "assignments", "word"])
def test_time_grows_with_the_text_and_not_with_its_square(pattern: str) -> None:
    """A report has 12 MB at most. Four times the text would take sixteen times as long if each character read the rest."""
    text = pattern * (20_000 // len(pattern))
    assert processor_seconds(text * 4) < 10 * processor_seconds(text)


def processor_seconds(text: str) -> float:
    """Return the least time of three calls."""

    def measured() -> float:
        began = time.process_time()
        redacted(text)
        return time.process_time() - began

    return min(measured() for _ in range(3))
