"""The cluster's IPAM settings: read by every node, written by an administrator.

`effective_limit` and the defaults are those of other programs that share the datastore; a store of one node has nobody to
be fair to, so that no number of blocks is too many there unless somebody sets one.
"""

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timezone

from svc.datastore.api import Backend, Conflict, Create, Entry, NotFound, Update, Write
from svc.ipam import errors
from svc.ipam.blocks import Rest
from svc.ipam.tries import ATTEMPTS, attempts
from svc.model.errors import Code
from svc.model.faults import Faults
from svc.model.ipam import IpamConfig
from svc.model.keys import IpamConfigKey

DEFAULT_MAX_BLOCKS = 20  # of one node, where nobody sets a number
MAX_COOLDOWN_SECONDS = 1200  # as the definition of the resource says in the orchestrator's API
PERSISTENCE = ("", "Enabled", "Disabled")


def read_settings(backend: Backend) -> IpamConfig:
    """The defaults where none are stored. Damaged when they cannot be decoded."""
    present = _present(backend)
    if present is None:
        return IpamConfig()
    assert isinstance(present.value, IpamConfig)
    return present.value


def rest_of(settings: IpamConfig) -> Rest:
    """For how long freed addresses rest, as of now; a longer time that another program has stored counts as the longest."""
    return Rest(min(settings.cooldown_seconds, MAX_COOLDOWN_SECONDS), datetime.now(timezone.utc))


def configure(backend: Backend, settings: IpamConfig) -> None:
    """Stores the settings, durably. CallerError, naming all faults, when they do not go together."""
    amend(backend, lambda present: replace(settings, extra=present.extra))


def amend(backend: Backend, change: Callable[[IpamConfig], IpamConfig]) -> tuple[IpamConfig, IpamConfig]:
    """Stores, durably, what `change` makes of the present settings; these and those. CallerError as `configure`."""
    for _ in attempts():
        present = _present(backend)
        before = IpamConfig() if present is None else present.value
        assert isinstance(before, IpamConfig)
        wanted = change(before)
        check_settings(wanted)
        if wanted == before:
            return before, wanted
        try:
            backend.write([_write(present, wanted)], durable=True)
        except (Conflict, NotFound):
            continue
        return before, wanted
    raise errors.too_much_contention(ATTEMPTS)


def check_settings(settings: IpamConfig) -> None:
    """CallerError naming every field that is out of range or contradicts another one."""
    faults = Faults("invalid IPAM settings", Code.INVALID_NETCONF)
    if not settings.strict_affinity and not settings.auto_allocate_blocks:
        remedy = "set strict_affinity to true as well: a node that may neither claim a block nor has one could only borrow"
        faults.add("auto_allocate_blocks", False, "needs strict_affinity", remedy)
    if settings.max_blocks_per_host and not settings.strict_affinity:
        remedy = "set strict_affinity to true as well, or leave the number at 0"
        faults.add("maxBlocksPerHost", settings.max_blocks_per_host, "needs strict_affinity", remedy)
    for name, number in (
        ("maxBlocksPerHost", settings.max_blocks_per_host),
        ("ipCooldownSeconds", settings.cooldown_seconds),
    ):
        if number < 0:
            faults.add(name, number, "is negative", "give 0 or more")
    if settings.cooldown_seconds > MAX_COOLDOWN_SECONDS:
        remedy = f"give {MAX_COOLDOWN_SECONDS} or less"
        faults.add("ipCooldownSeconds", settings.cooldown_seconds, f"is more than {MAX_COOLDOWN_SECONDS}", remedy)
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


def _present(backend: Backend) -> Entry | None:
    try:
        return backend.get(IpamConfigKey())
    except NotFound:
        return None


def _write(present: Entry | None, settings: IpamConfig) -> Write:
    if present is None:
        return Create(IpamConfigKey(), settings)
    return Update(IpamConfigKey(), settings, present.revision)
