"""svcctl get, delete and label: objects of any kind."""

import sys
from collections.abc import Iterator, Sequence
from datetime import datetime, timezone

import click

from svc.admin import changes
from svc.admin.changes import Options, Wanted
from svc.admin.columns import CREATED, LABELS, NAMESPACE
from svc.admin.kind import Check, Kind
from svc.admin.objects import Listing, Stored, check_deletable, delete_all, find_all
from svc.admin.resources import CLUSTER
from svc.ctl.changed import show_changes
from svc.ctl.cli_context import CliContext, listed_errors, table
from svc.ctl.completion import complete_objects
from svc.ctl.selection import (
    FORMATS,
    Scope,
    all_namespaces_option,
    choose,
    dry_run_option,
    file_options,
    known_kinds,
    locked_option,
    namespace_option,
    parse_targets,
    read_files,
    selector_option,
)
from svc.ctl.terminal import echo, visible
from svc.datastore.api import Backend
from svc.model.errors import CallerError, Code
from svc.model.resource import Resource, label_errors, ordered
from svc.model.selector import Selector
from svc.values import replace

_MAX_NAMED = 10  # objects in a question


@click.command()
@click.argument("arguments", nargs=-1, required=True, metavar="KIND [NAME]...", shell_complete=complete_objects)
@namespace_option
@all_namespaces_option
@selector_option
@click.option("-o", "--output", type=click.Choice(FORMATS), help="Output format.  [default: table]")
@click.pass_obj
def get(
    context: CliContext,
    arguments: Sequence[str],
    namespace: str,
    everywhere: bool,
    selector: Selector | None,
    output: str | None,
) -> None:
    """Show objects of a kind. KIND is a name, plural or short name, or several with commas; an unknown one lists them.

    \b
    Examples:
      svcctl get pools
      svcctl get pool pods -o yaml > pool.yaml    # edit it, then: svcctl apply -f pool.yaml
      svcctl get nodes -l rack=a -o wide
      svcctl get workloadendpoints -A -l 'app in (web,api)'
      svcctl get workloadendpoint shop/node1-k8s-web-eth0
      svcctl get block 10.65.0.7                  # the block with this address
      svcctl get pools,reservations,settings -o json
      svcctl get ippool/pods node/node1 -o name
    """
    targets = parse_targets(known_kinds(context), arguments)
    with context.store() as store, listed_errors(*(kind.plural for kind, _ in targets)):
        found = choose(context, store, targets, Scope(namespace, everywhere, selector))
    _show(context, found, output or context.output, everywhere=everywhere)


@click.command()
@click.argument("arguments", nargs=-1, metavar="[KIND [NAME]...]", shell_complete=complete_objects)
@file_options(required=False)
@namespace_option
@selector_option
@click.option("--all", "every", is_flag=True, help="Every object of the kind.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask. Objects that are named on the command line are deleted at once.")
@click.option("--ignore-not-found", is_flag=True, help="Objects that do not exist are not an error.")
@dry_run_option
@locked_option
@click.pass_obj
def delete(
    context: CliContext,
    /,
    arguments: Sequence[str],
    files: Sequence[str],
    recursive: bool,
    namespace: str,
    selector: Selector | None,
    **options: bool,
) -> None:
    """Delete objects by name, file or label. If one of them cannot be deleted, for example a pool in use, none is.

    \b
    Examples:
      svcctl delete pool pods
      svcctl delete ippool/pods ipreservation/gateways
      svcctl delete -f cluster/ --dry-run
      svcctl delete hostendpoints -l rack=a --yes
    """
    _require_one_way(arguments, files, selector, every=options["every"])
    with context.changing() if not options["dry_run"] else context.store() as store:
        if files:
            chosen = _of_files(context, store, (files, namespace, recursive), lenient=options["ignore_not_found"])
        else:
            targets = parse_targets(known_kinds(context), arguments)
            _require_writable(targets)
            chosen = _named(context, store, targets, Scope(namespace, selector=selector), lenient=options["ignore_not_found"])
        changes.raise_problems(check_deletable(store, chosen), Code.INVALID_NETCONF)
        if not options["while_locked"]:
            changes.require_unlocked(store.find(CLUSTER))
        if options["dry_run"]:
            _echo(chosen, "would be deleted")
            return
        if not chosen:
            echo("no object is selected", err=True)
        elif not options["yes"] and (files or selector or options["every"]):
            _confirm(chosen)
        for each in delete_all(store, chosen):
            _echo([each], "deleted")


@click.command()
@click.argument(
    "arguments", nargs=-1, required=True, metavar="KIND [NAME]... KEY=VALUE|KEY-...", shell_complete=complete_objects
)
@namespace_option
@selector_option
@click.option("--all", "every", is_flag=True, help="Every object of the kind.")
@click.option("--overwrite", is_flag=True, help="Replace labels that have another value.")
@dry_run_option
@locked_option
@click.pass_obj
def label(
    context: CliContext,
    /,
    arguments: Sequence[str],
    namespace: str,
    selector: Selector | None,
    every: bool,
    overwrite: bool,
    dry_run: bool,
    while_locked: bool,
) -> None:
    """Set labels with KEY=VALUE, and remove them with KEY-. If one object cannot be changed, none is.

    \b
    Examples:
      svcctl label node node1 rack=a zone-
      svcctl label nodes -l rack=a row=7 --overwrite
      svcctl label ippool/pods team=web --dry-run
    """
    words = [each for each in arguments if "=" not in each and not each.endswith("-")]
    pairs = _pairs([each for each in arguments if each not in words])
    if not words or not pairs:
        raise click.UsageError("give a kind, names, and labels: KEY=VALUE sets one, KEY- removes it")
    _require_one_way(words, (), selector, every=every)
    options = Options(datetime.now(timezone.utc), while_locked=while_locked)
    with context.store() if dry_run else context.changing() as store:
        found = choose(context, store, parse_targets(known_kinds(context), words), Scope(namespace, selector=selector))
        if not any(listing.found for listing in found):
            click.echo("no object is selected", err=True)
        wanted = [_labelled(each, pairs, overwrite=overwrite) for listing in found for each in listing.found]
        done = changes.preview(store, wanted, options) if dry_run else changes.apply(store, wanted, options)
        show_changes(done, "table", dry_run=dry_run)


def _show(context: CliContext, found: Sequence[Listing], output: str, *, everywhere: bool) -> None:
    objects = [each for listing in found for each in listing.found]
    if output in ("json", "yaml"):
        documents = [each.document(context.names.api_version) for each in objects]
        replace(context, output=output).answer(documents, "")
    elif output == "name":
        if objects:
            echo("\n".join(visible(each.kind.reference(each.resource)) for each in objects))
    else:
        echo("\n\n".join(_table(listing, wide=output == "wide", everywhere=everywhere) for listing in found))
        return
    for listing in found:
        for error in listing.errors.values():
            echo(f"warning: {error}", err=True)


def _table(listing: Listing, *, wide: bool, everywhere: bool) -> str:
    columns = [*([NAMESPACE] if everywhere and listing.kind.is_namespaced else []), *listing.kind.columns]
    if wide:
        further = [*listing.kind.wide, CREATED, *([LABELS] if listing.kind.has_labels else [])]
        columns += [column for column in further if column not in columns]
    names = [each.resource.name for each in listing.found]
    rows = [
        [*(cell(each.resource) for _, cell in columns), listing.errors.get(each.resource.name, "")] for each in listing.found
    ]
    hidden = sorted(listing.errors.keys() - set(names))
    rows += [[name, *("" for _ in columns[1:]), listing.errors[name]] for name in hidden]
    return table([*(heading for heading, _ in columns), "ERROR" if listing.errors else ""], rows)


def _require_one_way(arguments: Sequence[str], files: Sequence[str], selector: Selector | None, *, every: bool) -> None:
    """Raise UsageError unless objects are chosen in one way: by files, names, labels or --all."""
    has_names = len(arguments) > 1 or any("/" in word for word in arguments)
    ways = [bool(files), has_names, selector is not None, every]
    if sum(ways) != 1 or bool(files) == bool(arguments):
        raise click.UsageError("choose objects in one way: KIND NAME..., KIND -l SELECTOR, KIND --all, or files")


def _require_writable(targets: Sequence[tuple[Kind, list[str]]]) -> None:
    """Raise CallerError if objects that are named are read only, also if they do not exist."""
    problems = [
        f"{kind.noun} {name!r} is read only: {kind.read_only}" for kind, names in targets if kind.read_only for name in names
    ]
    changes.raise_problems(problems, Code.INVALID_NETCONF)


def _named(
    context: CliContext, store: Backend, targets: Sequence[tuple[Kind, list[str]]], scope: Scope, *, lenient: bool
) -> list[Stored]:
    if lenient:
        every = choose(context, store, [(kind, []) for kind, _ in targets], scope)
        present = [[name for name in names if _has(listing, name)] for (_, names), listing in zip(targets, every, strict=True)]
        targets = [(kind, some) for (kind, names), some in zip(targets, present, strict=True) if some or not names]
    listings = choose(context, store, targets, scope)
    for (_, names), listing in zip(targets, listings, strict=True):
        for name in names:
            if name in listing.errors and not _has(listing, name):
                details = "delete its document with the tools of the datastore, such as etcdctl or kubectl"
                raise CallerError(listing.errors[name], details=details)
    return [each for listing in listings for each in listing.found]


def _has(listing: Listing, name: str) -> bool:
    return any(listing.kind.storage.is_named(each.resource, name) for each in listing.found)


def _of_files(context: CliContext, store: Backend, files: tuple[Sequence[str], str, bool], *, lenient: bool) -> list[Stored]:
    """Return the stored objects of documents. Raise CallerError if one does not exist, or has another revision."""
    paths, namespace, recursive = files
    wanted, problems = read_files(context, paths, namespace, recursive=recursive)
    found = find_all(store, [(each.kind, each.resource) for each in wanted])
    for each, present in zip(wanted, found, strict=True):
        if each.kind.read_only:
            problems.append(f"{each.place}{each.kind.describe(each.resource)}: is read only: {each.kind.read_only}")
        elif present is None and not lenient:
            problems.append(
                f"{each.place}{each.kind.describe(each.resource)}: does not exist: leave it out, or give --ignore-not-found"
            )
        elif present and each.revision not in ("", present.revision):
            problems.append(f"{each.place}{each.kind.describe(each.resource)}: was changed since it was read: read it again")
    changes.raise_problems(problems, Code.INVALID_NETCONF)
    return list({(each.kind.name, each.key): each for each in found if each}.values())


def _confirm(chosen: Sequence[Stored]) -> None:
    if sys.stdin is None or not sys.stdin.isatty():
        raise click.UsageError("standard input is not a terminal: give --yes to delete without a question")
    named = ", ".join(each.kind.reference(each.resource) for each in chosen[:_MAX_NAMED])
    more = f" and {len(chosen) - _MAX_NAMED} more" if len(chosen) > _MAX_NAMED else ""
    if not click.confirm(visible(f"Delete {named}{more}?")):
        raise CallerError("nothing was deleted", details="the question was not answered with yes")


def _echo(chosen: Sequence[Stored], outcome: str) -> None:
    for each in chosen:
        echo(f"{each.kind.reference(each.resource)} {outcome}")


def _pairs(given: Sequence[str]) -> dict[str, str | None]:
    """Return the labels to set; None for those to remove."""
    pairs: dict[str, str | None] = {}
    for text in given:
        key, sign, value = text.partition("=")
        key = key if sign else key.removesuffix("-")
        if not key or key in pairs:
            problem = "has no key" if not key else f"gives label {key!r} a second time"
            raise click.UsageError(f"{text!r} {problem}: give KEY=VALUE or KEY- once for each label")
        pairs[key] = value if sign else None
    return pairs


def _labelled(each: Stored, pairs: dict[str, str | None], *, overwrite: bool) -> Wanted:
    """Return the object with other labels."""

    def change(present: Resource | None) -> Resource:
        resource = present or each.resource
        labels = {key: value for key, value in {**resource.labels, **pairs}.items() if value is not None}
        return replace(resource, metadata=ordered({**resource.metadata, "labels": labels}))

    check = _label_check(each.kind, pairs, overwrite=overwrite)
    return Wanted(replace(each.kind, checker=lambda _backend, _resources: check), each.resource, change)


def _label_check(kind: Kind, pairs: dict[str, str | None], *, overwrite: bool) -> Check:
    def check(_resource: Resource, present: Resource | None) -> Iterator[str]:
        if not kind.has_labels:
            yield "has no labels: choose another kind"
        yield from (error.line for error in label_errors({key: value or "" for key, value in pairs.items()}))
        for key, value in pairs.items():
            old = present.labels.get(key) if present else None
            if None not in (old, value) and old != value and not overwrite:
                yield f"metadata.labels.{key} = {old!r} is another value than {value!r}: give --overwrite to replace it"

    return check
