"""Fixes for refusals of the API server."""

import re

_REMEDIES = {
    401: "the credentials are expired or of another cluster: renew the token or the kubeconfig",
    404: "see whether its kind is served: `svcctl crd print` shows what must be, `svcctl crd apply` makes it so",
    409: "read it again, and repeat",
    410: "read it again",
    422: "correct the named field",
    429: "the API server is overloaded: try again later",
    503: "the API server is not ready: see its log",
}

_OF_THE_PLUGIN = re.compile(  # the requests that its role allows; see svc.deploy.rbac
    r"GET /apis/[^/]+/\w+/(ipamblocks|blockaffinities|ipamhandles|ippools|ipreservations|clusterinformations|ipamconfig\w*)\b"
    r"|(POST|PUT|DELETE) /apis/[^/]+/\w+/(ipamblocks|blockaffinities|ipamhandles)\b"
    r"|(GET|POST|PUT) /apis/[^/]+/\w+/(namespaces/[^/]+/)?leases\b"
    r"|GET /api/v1/(nodes|namespaces|pods\?[^ ]*fieldSelector=spec\.nodeName)\b"
    r"|PATCH /api/v1/namespaces/[^/]+/pods/[^/]+/status\b"
)


def remedy_for(status: int, call: str) -> str:
    """Return the fix. For a missing right, name the role of the plugin if it includes the right, else an administrator."""
    if status != 403:
        return _REMEDIES.get(status, "see the API server's log")
    if _OF_THE_PLUGIN.match(call):
        return "grant it: `svcctl crd role` prints what the plugin needs"
    return "use the kubeconfig of an administrator, with --netconf or SVC_NETCONF: the role of the plugin does not include this"
