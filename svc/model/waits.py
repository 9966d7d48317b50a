"""What a network configuration says of waiting during an ADD."""

from svc.values import dataclass


@dataclass(frozen=True, slots=True)
class Trust:
    """How a gate's certificate is checked: not at all, or by the authorities of a file (empty: the system's)."""

    verify: bool = True
    ca_file: str = ""


CHECKED = Trust()


@dataclass(frozen=True, slots=True)
class GateSettings:
    """Readiness gates (specification, R6): all `urls` must answer within so many seconds."""

    urls: tuple[str, ...] = ()
    seconds: float = 30
    trust: Trust = CHECKED


@dataclass(frozen=True, slots=True)
class PolicySettings:
    """The policy set-up wait (specification, R7): off where `seconds` is 0; an empty directory means the deployment's."""

    seconds: float = 0
    directory: str = ""


NO_GATES = GateSettings()
NO_POLICY_SETUP = PolicySettings()
