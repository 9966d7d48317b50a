"""svcctl explain."""

import re
from collections.abc import Iterator
from typing import Any, Final

import click

from svc.admin.explain import Explanation, Network
from svc.admin.explain import explain as explain_add
from svc.ctl.cli_context import CliContext, Target, output_option, table
from svc.ctl.completion import names_of
from svc.ctl.interrupts import INTERRUPTED, end
from svc.ctl.past_calls import explain_calls
from svc.ipam.preview import BlockView, PoolView, Preview
from svc.model.endpoint import DEFAULT_NAMESPACE, PRIMARY_INTERFACE
from svc.model.errors import CallerError

Json = dict[str, Any]

_POOLS = ("POOL", "CIDR", "VERDICT", "NEXT BLOCK", "TO BORROW")
_BLOCKS = ("BLOCK", "POOL", "PROBLEM", "USED", "FREE", "RESERVED", "COOLDOWN")
_NAME: Final = re.compile(r"[a-z0-9]([-.a-z0-9]*[a-z0-9])?")
_NUMBERS = 4  # the last columns of the blocks


@click.command()
@click.argument("pod", metavar="[NAMESPACE/]POD", required=False)
@click.option(
    "--node",
    default="",
    metavar="NAME",
    shell_complete=names_of("node"),
    help="Explain an ADD on this node.  [default: the pod's, else this one]",
)
@click.option("--ifname", default="", metavar="NAME", help=f"Interface of the ADD.  [default: {PRIMARY_INTERFACE}]")
@click.option("--container", metavar="ID", help="Show past calls: of the containers whose ID begins so.")
@output_option
@click.pass_obj
def explain(context: CliContext, pod: str | None, node: str, ifname: str, container: str | None) -> None:
    """Explain what an ADD of a pod would get now, or with --container what past calls did.

    \b
    For a pod, the answer has the annotations that count, each pool with the reason if it does not serve
    the pod, the node's blocks in the order in which they are used, the limits, and the decisions of the
    ADD. Nothing is written. Exit status 0 also if the ADD would fail: the answer says so.

    \b
    For a container, the answer has the outcome, the time of each phase, the decisions and the log lines
    of each call among the last 1,000 of this node's agent.

    \b
    Examples:
      svcctl explain web-1
      svcctl explain shop/web-1 --node node-7 -o json
      svcctl --netconf /etc/cni/net.d/10-svc.conflist explain shop/web-1
      svcctl explain --container 3f1c
    """
    if pod is not None and container is None:
        _explain_pod(context, pod, node, ifname or PRIMARY_INTERFACE)
    elif container is None:
        raise click.UsageError("nothing to explain: give [NAMESPACE/]POD, such as default/web-1, or --container ID")
    elif pod is not None or node or ifname:
        raise click.UsageError("--container shows past calls: give neither a pod nor --node nor --ifname with it")
    elif not container:
        raise click.BadParameter("is empty: give the ID of a container, or its beginning", param_hint="--container")
    else:
        explain_calls(context, container)


def _explain_pod(context: CliContext, pod: str, node: str, ifname: str) -> None:
    namespace, slash, name = pod.rpartition("/")
    parts = [namespace, name] if slash else [name]
    if not all(map(_NAME.fullmatch, parts)):
        raise click.BadParameter(f"{pod!r} is not [NAMESPACE/]POD, such as default/web-1", param_hint="POD")
    target = context.target
    try:
        found = explain_add(_network(context, target), namespace or DEFAULT_NAMESPACE, name, node=node, ifname=ifname)
    except KeyboardInterrupt:
        click.echo("interrupted", err=True)
        end(INTERRUPTED, is_complete=False)
    context.answer([_document(found)], "\n".join(_lines(found, target)))


def _network(context: CliContext, target: Target) -> Network:
    if target.netconf is None:
        raise CallerError(
            "no network configuration is known, and an ADD depends on it",
            details="name one with --netconf, or repeat `svcctl install` with --conf-dir",
        )
    return Network(target.names, target.netconf, context.open_present)


def _document(found: Explanation) -> Json:
    outcome: Json = {"addresses": list(found.addresses)}
    if found.error is not None:
        outcome["error"] = {"code": int(found.error.code), "msg": found.error.msg, "details": found.error.details}
    return {
        "pod": found.pod,
        "node": found.node,
        "network": found.network,
        "source": found.source,
        "annotations": list(found.annotations),
        "families": {f"IPv{version}": _family(preview) for version, preview in found.previews.items()},
        "decisions": list(found.decisions),
        "warnings": list(found.warnings),
        "present": list(found.present),
        "outcome": outcome,
    }


def _family(preview: Preview) -> Json:
    return {
        "pools": [_pool(pool) for pool in preview.pools],
        "unreadable": list(preview.unreadable),
        "strictAffinity": preview.settings.strict_affinity,
        "autoAllocateBlocks": preview.settings.auto_allocate_blocks,
        "ipCooldownSeconds": preview.settings.cooldown_seconds,
        "maxBlocks": preview.max_blocks,
    }


def _pool(pool: PoolView) -> Json:
    return {
        "name": pool.name,
        "cidr": str(pool.cidr),
        "verdict": pool.verdict,
        "blocks": [_block(block) for block in pool.blocks],
        "nextBlock": str(pool.claimable) if pool.claimable else None,
        "toBorrow": pool.to_borrow,
    }


def _block(block: BlockView) -> Json:
    counts = {"used": block.used, "free": block.free, "reserved": block.reserved, "cooldown": block.cooldown}
    return {"cidr": str(block.cidr), "problem": block.problem, **counts}


def _lines(found: Explanation, target: Target) -> Iterator[str]:
    yield f"An ADD of pod {found.pod} on node {found.node}, network {found.network}"
    yield f"Datastore: {target}"
    yield f"Addresses from: {found.source}"
    yield from (f"Annotation: {text}" for text in found.annotations)
    for version, preview in found.previews.items():
        yield ""
        yield from _family_lines(version, preview, found.node)
    if found.decisions or found.warnings:
        yield ""
    yield from (f"Decision: {text}" for text in found.decisions)
    yield from (f"Warning: {text}" for text in found.warnings)
    yield ""
    yield from (f"The pod has now: {address}" for address in found.present)
    if found.error is not None:
        yield f"The ADD would fail with code {int(found.error.code)}: {found.error}"
    elif found.addresses:
        yield f"The ADD would get: {', '.join(found.addresses)}"
    else:
        yield f"The ADD would get what {found.source} assigns: it is not executed here"


def _family_lines(version: int, preview: Preview, node: str) -> Iterator[str]:
    yield f"Pools for IPv{version}, in order:"
    rows = [
        (
            pool.name,
            str(pool.cidr),
            pool.verdict or "serves",
            "" if pool.verdict else str(pool.claimable or "none is free"),
            "" if pool.verdict else str(pool.to_borrow),
        )
        for pool in preview.pools
    ]
    yield table(_POOLS, rows, 1) if rows else "none"
    yield from (f"Unreadable: {text}" for text in preview.unreadable)
    blocks = [(pool, block) for pool in preview.pools for block in pool.blocks]
    yield f"Blocks of {node} in them, in order: {'' if blocks else 'none'}".rstrip()
    if blocks:
        yield table(_BLOCKS, [_block_row(pool, block) for pool, block in blocks], _NUMBERS)
    settings = preview.settings
    affinity = "strict affinity" if settings.strict_affinity else "no strict affinity"
    claims = "" if settings.auto_allocate_blocks else ", no further blocks (autoAllocateBlocks is false)"
    yield (
        f"Limits: {affinity}{claims}, {len(blocks)} blocks of {preview.max_blocks or 'any number'}, "
        f"cooldown {settings.cooldown_seconds} s"
    )


def _block_row(pool: PoolView, block: BlockView) -> tuple[str, ...]:
    counts = block.used, block.free, block.reserved, block.cooldown
    return str(block.cidr), pool.name, block.problem, *map(str, counts)
