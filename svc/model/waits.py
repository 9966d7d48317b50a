"""Settings of waits during an ADD, from the network configuration."""

from svc.values import dataclass


@dataclass(frozen=True, slots=True)
class TlsTrust:
    """The verification of a readiness gate's certificate: off, or with the authorities in a file (empty: the system's)."""

    verify: bool = True
    ca_file: str = ""


CHECKED = TlsTrust()


@dataclass(frozen=True, slots=True)
class GateSettings:
    """Readiness gates (specification, R6): all `urls` must answer within `seconds`."""

    urls: tuple[str, ...] = ()
    seconds: float = 30
    trust: TlsTrust = CHECKED


@dataclass(frozen=True, slots=True)
class PolicySettings:
    """The wait for policy setup (specification, R7); off if `seconds` is 0. An empty directory means the deployment's
    default.
    """

    seconds: float = 0
    directory: str = ""


NO_GATES = GateSettings()
NO_POLICY_SETUP = PolicySettings()
