"""The cluster's IPAM settings: read by every node, written by an administrator.

`effective_limit` and the defaults are those of other programs that share the datastore; a store of one node has nobody to
be fair to, so that no number of blocks is too many there unless somebody sets one.
"""

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timezone

from svc.datastore.api import Backend
from svc.ipam.blocks import Cooldown
from svc.model.errors import Code
from svc.model.field_errors import Faults
from svc.model.ipam import IpamConfig
from svc.model.keys import IpamConfigKey

DEFAULT_MAX_BLOCKS = 20  # of one node, where nobody sets a number
MAX_COOLDOWN_SECONDS = 1200  # as the definition of the resource says in the orchestrator's API
MAX_BLOCKS_PER_HOST = 1_000_000  # the lower of the bounds that the definitions have: one number for every datastore
PERSISTENCE = ("", "Enabled", "Disabled")

Instruct = Callable[[str, str], str]
"""How a remedy says that a field, which has its name of the resource, is to be set to a value."""


def _set_field(field: str, value: str) -> str:
    return f"set {field} to {value}"


def read_settings(backend: Backend) -> IpamConfig:
    """The defaults where none are stored. Damaged when they cannot be decoded."""
    present = backend.find(IpamConfigKey())
    if present is None:
        return IpamConfig()
    return present.value


def cooldown_of(settings: IpamConfig) -> Cooldown:
    """For how long freed addresses rest, as of now; a longer time that another program has stored counts as the longest."""
    return Cooldown(min(settings.cooldown_seconds, MAX_COOLDOWN_SECONDS), datetime.now(timezone.utc))


def configure(backend: Backend, settings: IpamConfig) -> None:
    """Stores the settings, durably. CallerError, naming all faults, when they do not go together."""
    update_settings(backend, lambda present: replace(settings, extra=present.extra))


def update_settings(
    backend: Backend, change: Callable[[IpamConfig], IpamConfig], instruct: Instruct = _set_field
) -> tuple[IpamConfig, IpamConfig]:
    """Store, durably, what `change` makes of the present settings; return these and those. Raise CallerError as `configure`.

    `instruct` words the remedies."""
    before = wanted = IpamConfig()

    def changed(present: IpamConfig | None) -> IpamConfig | None:
        nonlocal before, wanted
        before = present or IpamConfig()
        wanted = change(before)
        check_settings(wanted, instruct)
        return present if wanted == before else wanted

    backend.update(IpamConfigKey(), changed, durable=True)
    return before, wanted


def check_settings(settings: IpamConfig, instruct: Instruct = _set_field) -> None:
    """Raise CallerError naming every field that is out of range or contradicts another one."""
    faults = Faults("invalid IPAM settings", Code.INVALID_NETCONF)
    strict = f"{instruct('strictAffinity', 'true')} as well"
    if not settings.strict_affinity and not settings.auto_allocate_blocks:
        remedy = f"{strict}: a node that may neither claim a block nor has one could only borrow"
        faults.add("autoAllocateBlocks", False, "needs strictAffinity", remedy)
    if settings.max_blocks_per_host and not settings.strict_affinity:
        remedy = f"{strict}, or {instruct('maxBlocksPerHost', '0')}"
        faults.add("maxBlocksPerHost", settings.max_blocks_per_host, "needs strictAffinity", remedy)
    for name, number, most in (
        ("maxBlocksPerHost", settings.max_blocks_per_host, MAX_BLOCKS_PER_HOST),
        ("ipCooldownSeconds", settings.cooldown_seconds, MAX_COOLDOWN_SECONDS),
    ):
        if not 0 <= number <= most:
            problem = "is negative" if number < 0 else f"is more than {most}"
            faults.add(name, number, problem, f"give 0 to {most}")
    if settings.vm_address_persistence not in PERSISTENCE:
        remedy = "give Enabled or Disabled, or leave it out"
        faults.add("kubeVirtVMAddressPersistence", settings.vm_address_persistence, "is not known", remedy)
    faults.raise_if_any()


def effective_limit(settings: IpamConfig, requested: int, *, shared: bool) -> int:
    """How many blocks of the request's pools a node may own; 0 means any number. The smaller of two numbers wins."""
    given = [number for number in (requested, settings.max_blocks_per_host) if number > 0]
    if given:
        return min(given)
    return DEFAULT_MAX_BLOCKS if shared else 0
