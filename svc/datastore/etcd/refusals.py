"""What etcd, gRPC and TLS say when something fails, and what to do about it."""

_REMEDIES = (  # what the message says, what to do
    (
        "CERTIFICATE_VERIFY_FAILED",
        "let etcd_ca_cert_file hold the root that issued the server's certificate, and the server have one that is valid today",
    ),
    ("Peer name", "the server's certificate must name the host of its endpoint: reissue it, or name the server as it does"),
    ("WRONG_VERSION_NUMBER", "the server speaks no TLS: give the endpoint as http://, or switch TLS on at the server"),
    (
        "andshake",
        "set etcd_cert_file and etcd_key_file to a valid client certificate, issued by a CA that the server trusts",
    ),
    ("Connection refused", "start etcd there, or correct the endpoint"),
    ("errors resolving", "correct the host name, or make it known to the system's resolver"),
    ("DNS resolution failed", "correct the host name, or make it known to the system's resolver"),
    ("no answer in time", "look at the server's health (etcdctl endpoint health) and at the network between"),
    ("etcdserver: mvcc: database space exceeded", "compact and defragment etcd, then disarm its alarm (etcdctl alarm disarm)"),
    ("permission denied", "grant the role of the client certificate's user read and write on the key root"),
    ("user name is empty", "etcd wants an authenticated user: set etcd_cert_file, with the user as its common name"),
    ("request is too large", "raise etcd's --max-request-bytes"),
    ("too many operations", "raise etcd's --max-txn-ops to 128 or more"),
    ("Socket closed", "if the server wants client certificates, set etcd_cert_file and etcd_key_file to one that it accepts"),
    ("onnection reset", "if the server wants client certificates, set etcd_cert_file and etcd_key_file to one that it accepts"),
    ("etcdserver:", "look at the cluster's health: etcdctl endpoint health --cluster"),
)


def remedy_for(text: str) -> str:
    """What to do when a message says this."""
    return next((remedy for words, remedy in _REMEDIES if words in text), "look into the log of etcd")
