"""etcd v3 store. It is imported only if it is configured, because gRPC needs more memory than the rest of svc on a node.

gRPC reads its environment variables when it is imported, and etcd3 imports it. They are therefore set before any module of
this package is imported.
"""

import os

os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # the errors of the calls contain the same text
os.environ.setdefault("GRPC_DNS_RESOLVER", "native")  # the resolver of the system, which reads /etc/hosts
