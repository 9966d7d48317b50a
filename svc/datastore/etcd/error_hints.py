"""Fixes for the error messages of etcd, gRPC and TLS."""

NO_ANSWER_IN_TIME = "no answer in time"

_OUR_CERTIFICATE = "set etcd_cert_file and etcd_key_file to a certificate, valid today, that the server's CA has issued"
_PLAIN = "look whether etcd runs there, and whether it wants https:// and a client certificate (etcd_cert_file)"
_HOST = "name the server as its certificate does, or give it a certificate with this name"
_NAME = "correct the host name, or make it known to the system's resolver"

_REMEDIES = (  # part of the message, and the fix
    (
        "CERTIFICATE_VERIFY_FAILED",
        "let etcd_ca_cert_file hold the root that issued the server's certificate, and give the server one that is valid today",
    ),
    ("Hostname Verification", _HOST),
    ("Peer name", _HOST),
    ("Unwrap failed", f"the server refuses the client certificate, or wants one: {_OUR_CERTIFICATE}"),
    (
        "Handshake read failed",
        f"the server speaks no TLS (then it is http://), or refuses the client certificate: {_OUR_CERTIFICATE}",
    ),
    ("andshake", f"the TLS handshake fails: {_OUR_CERTIFICATE}, and use https:// only where the server speaks TLS"),
    ("Connection refused", "start etcd there, or correct the endpoint"),
    ("errors resolving", _NAME),
    ("DNS resolution failed", _NAME),
    (NO_ANSWER_IN_TIME, "look at the server's health (etcdctl endpoint health) and at the network between"),
    ("Socket closed", _PLAIN),
    ("onnection reset", _PLAIN),
    ("database space exceeded", "compact and defragment etcd, then disarm its alarm (etcdctl alarm disarm)"),
    ("permission denied", "grant the user of the client certificate read and write on all keys below the key root"),
    ("user name is empty", "etcd wants an authenticated user: set etcd_cert_file, with the user as its common name"),
    ("request is too large", "raise etcd's --max-request-bytes"),
    ("larger than max", "raise etcd's --max-request-bytes"),
    ("too many operations", "raise etcd's --max-txn-ops to 128 or more"),
    ("failed to connect", "start etcd there, or correct the endpoint"),
    ("etcdserver:", "look at the cluster's health: etcdctl endpoint health --cluster"),
)


def remedy_for(text: str, *, by_name: bool = False) -> str:
    """Return the fix for a server's error message. `by_name` is true if the endpoint is a host name."""
    remedy = next((remedy for words, remedy in _REMEDIES if words in text), "look into the log of etcd")
    return f"{remedy}, and whether its host name resolves" if by_name and text == NO_ANSWER_IN_TIME else remedy
