"""The IPAM settings of the cluster, which an administrator writes and every node reads.

`effective_limit` and the defaults agree with other programs that share the datastore. A store of one node has no other nodes
that need blocks, so it has no block limit by default.
"""

from collections.abc import Callable
from datetime import datetime, timezone

from svc.datastore.api import Backend
from svc.ipam.blocks import Cooldown
from svc.model.errors import Code
from svc.model.field_errors import FieldErrors
from svc.model.ipam import IpamConfig
from svc.model.keys import IpamConfigKey

DEFAULT_MAX_BLOCKS = 20  # per node, if neither the request nor the settings set a limit
MAX_COOLDOWN_SECONDS = 1200  # the maximum in the CustomResourceDefinition
MAX_BLOCKS_PER_HOST = 1_000_000  # the lowest maximum of the CustomResourceDefinitions, used for every datastore
PERSISTENCE = ("", "Enabled", "Disabled")

Instruct = Callable[[str, str], str]  # words the instruction to set a field, given by its name in the resource, to a value


def read_settings(backend: Backend) -> IpamConfig:
    """Read the settings. Return the defaults if none are stored. Raise UndecodableEntry if they cannot be decoded."""
    present = backend.find(IpamConfigKey())
    return IpamConfig() if present is None else present.value


def cooldown_of(settings: IpamConfig) -> Cooldown:
    """Return the cooldown, with the current time. It is limited, because another program may have stored a longer one."""
    return Cooldown(min(settings.cooldown_seconds, MAX_COOLDOWN_SECONDS), datetime.now(timezone.utc))


def update_settings(
    backend: Backend, change: Callable[[IpamConfig], IpamConfig], instruct: Instruct
) -> tuple[IpamConfig, IpamConfig]:
    """Apply `change` to the stored settings and store the result durably. Return the settings before and after.

    `instruct` words the fixes. Raise CallerError with every field error, StoreError if the datastore fails.
    """
    before = wanted = IpamConfig()

    def changed(present: IpamConfig | None) -> IpamConfig | None:
        nonlocal before, wanted
        before = present or IpamConfig()
        wanted = change(before)
        check_settings(wanted, instruct)
        return present if wanted == before else wanted

    backend.update(IpamConfigKey(), changed, durable=True)
    return before, wanted


def check_settings(settings: IpamConfig, instruct: Instruct) -> None:
    """Raise CallerError if a field is out of range or contradicts another one. The error has every such field."""
    errors = FieldErrors("invalid IPAM settings", Code.INVALID_NETCONF)
    strict = f"{instruct('strictAffinity', 'true')} as well"
    if not settings.strict_affinity and not settings.auto_allocate_blocks:
        remedy = f"{strict}: a node that may neither claim a block nor has one could only borrow"
        errors.add("autoAllocateBlocks", False, "needs strictAffinity", remedy)
    if settings.max_blocks_per_host and not settings.strict_affinity:
        remedy = f"{strict}, or {instruct('maxBlocksPerHost', '0')}"
        errors.add("maxBlocksPerHost", settings.max_blocks_per_host, "needs strictAffinity", remedy)
    for name, number, most in (
        ("maxBlocksPerHost", settings.max_blocks_per_host, MAX_BLOCKS_PER_HOST),
        ("ipCooldownSeconds", settings.cooldown_seconds, MAX_COOLDOWN_SECONDS),
    ):
        if not 0 <= number <= most:
            problem = "is negative" if number < 0 else f"is more than {most}"
            errors.add(name, number, problem, f"give 0 to {most}")
    if settings.vm_address_persistence not in PERSISTENCE:
        remedy = "give Enabled or Disabled, or leave it out"
        errors.add("kubeVirtVMAddressPersistence", settings.vm_address_persistence, "is not known", remedy)
    errors.raise_if_any()


def effective_limit(settings: IpamConfig, requested: int, *, shared: bool) -> int:
    """Return the smaller limit of a host's blocks, 0 for none. `shared` is true if several nodes use the datastore."""
    given = [number for number in (requested, settings.max_blocks_per_host) if number > 0]
    if given:
        return min(given)
    return DEFAULT_MAX_BLOCKS if shared else 0
