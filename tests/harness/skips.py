"""Detection of skipped tests: on the project's own machines every test must run, except those listed here."""

import os

import pytest

from harness.otlp import NO_RECEIVER
from harness.podman import NO_CNI

NO_ANALYZE = "systemd-analyze is not installed"
NO_SYSTEMD = "systemd is not installed"
NO_CGROUP2 = "control groups of version 2 are not writable"
OLD_KERNEL = "the kernel is older than 6.9: it does not activate the queue of a link when it is asked for the link"
NO_HELM = "needs helm: `make helm` builds it"
NO_KUBECTL = "kubectl is not installed"
NO_KUSTOMIZE = "needs kustomize 2.0.3: `make kustomize` builds it"
HAS_IPIP = "this kernel has IPIP"
OLD_CIBUILDWHEEL = "cibuildwheel needs Python 3.11"
NO_DEBIAN_TOOLS = "needs the tools of Debian packages: `make deb` installs them"
ONE_PROCESSOR = "this machine has one processor"
OTHER_STORES = "a case of other datastores: "  # the text that follows says why

# The reason that the test gives, and why the skip is allowed where the whole suite must run.
EXPECTED: dict[str, str] = {
    NO_CNI: "Debian trixie and Ubuntu 24.10 have none any more that does",
    NO_RECEIVER: "the receiver of traces is built with Go, which images of containers do not have",
    NO_HELM: "helm is built with Go, which images of containers do not have",
    NO_KUSTOMIZE: "kustomize is built with Go, which images of containers do not have",
    NO_KUBECTL: "no distribution has a package of it that is new enough",
    NO_ANALYZE: "images of containers have no systemd",
    NO_SYSTEMD: "images of containers have no systemd",
    NO_CGROUP2: "containers may not write the control groups of their host",
    OLD_KERNEL: "Debian 12 has Linux 6.1, where the first packets to a pod can be lost",
    OTHER_STORES: "a suite that runs over every datastore has cases that only some have",
    HAS_IPIP: "what happens without it needs a kernel that has none",
    OLD_CIBUILDWHEEL: "it runs on newer Pythons than the oldest that it builds for",
    NO_DEBIAN_TOOLS: "only `make deb` and tests of some minutes need them",
    ONE_PROCESSOR: "what spreads threads over processors, or gathers them, has nothing to do there",
}


def unexpected(skipped: list[pytest.TestReport]) -> list[str]:
    """Return the skips whose reason is not listed, as `TEST: REASON`. Return none unless CI is set."""
    if os.environ.get("CI") != "true":
        return []
    found = []
    for report in skipped:
        reason = report.longrepr[2].removeprefix("Skipped: ") if isinstance(report.longrepr, tuple) else str(report.longrepr)
        if reason not in EXPECTED and not reason.startswith(OTHER_STORES):
            found.append(f"{report.nodeid}: {reason}")
    return found
