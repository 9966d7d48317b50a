"""svcctl convert."""

import sys
from collections.abc import Sequence
from typing import Any

import click

from svc.admin import convert as objects
from svc.admin import convert_netconf, convert_operator, documents
from svc.admin.documents import Document
from svc.admin.renaming import Renaming
from svc.ctl.cli_context import CliContext, echo_json, echo_yaml
from svc.ctl.file_completion import complete_profiles
from svc.ctl.selection import file_options, read_stdin
from svc.ctl.terminal import echo
from svc.model.errors import CallerError
from svc.model.installation import KIND as INSTALLATION
from svc.names import Names
from svc.netconf.names_profiles import load_profile

INCOMPLETE = 3  # exit status if something has no equivalent
_SHIPPED = ("default", "calico")


@click.command()
@file_options(required=True)
@click.option(
    "--to",
    "target",
    metavar="default|calico|FILE",
    required=True,
    shell_complete=complete_profiles,
    help="Names profile of the result.",
)
@click.option(
    "--group",
    type=click.Choice(["plain", "backing"]),
    default="plain",
    show_default=True,
    help="API group of the result: the API's own, or the one behind it.",
)
@click.option(
    "--as",
    "form",
    type=click.Choice(["netconf", "installation", "pools"]),
    help="Convert an Installation to a network configuration or to pools, or a network configuration to an Installation.",
)
@click.option("-o", "--output", type=click.Choice(["yaml", "json"]), default="yaml", show_default=True, help="Output format.")
@click.pass_obj
def convert(
    context: CliContext, files: Sequence[str], recursive: bool, target: str, group: str, form: str | None, output: str
) -> None:
    """Convert documents and network configurations to the names of another deployment. It uses no datastore.

    Legacy fields of pools get their names of today, and what only a datastore sets is left out. What has no equivalent is left
    out and named on standard error. Exit status: 0 if all was converted, 3 if something has no equivalent, 1 for errors.

    \b
    Examples:
      svcctl convert -f calico-pools.yaml --to default | svcctl apply -f -
      svcctl convert -f pools.yaml --to calico --group backing
      svcctl convert -f 10-calico.conflist --to default > 10-svc.conflist
      svcctl convert -f installation.yaml --to default --as netconf > 10-svc.conflist
      svcctl convert -f installation.yaml --to default --as pools | svcctl apply -f -
      svcctl convert -f 10-svc.conflist --to calico --as installation
    """
    given = documents.read_raw(list(documents.sources(files, read_stdin, recursive=recursive)))
    names = load_profile(target)
    known = list(dict.fromkeys([*([context.names] if context.profile else []), *map(load_profile, _SHIPPED), names]))
    notes: list[str] = []
    result: list[Any] = []
    for document in given:
        converter = _Converter(document, known, names, notes)
        result += converter.convert(form, backing=group == "backing")
    _show(result, output)
    for note in notes:
        echo(f"no equivalent: {note}", err=True)
    if notes:
        sys.exit(INCOMPLETE)


class _Converter:
    """Converts one document, and records what has no equivalent."""

    def __init__(self, document: Document, known: Sequence[Names], target: Names, notes: list[str]) -> None:
        self._document = document
        self._known = known
        self._target = target
        self._notes = notes

    def convert(self, form: str | None, *, backing: bool) -> list[Any]:
        """Return the results in the form that the user chose, else in that of the document."""
        document = self._document
        if not isinstance(document.content, dict):
            raise CallerError(
                f"{document.title.strip(': ')} is not an object", details="give documents or network configurations"
            )
        if convert_netconf.is_netconf(document):
            return [self._netconf(form)]
        renaming = Renaming(objects.source_of(document, self._known), self._target)
        if document.kind == INSTALLATION:
            return self._installation(form, renaming, backing=backing)
        if form:
            raise self._unsuitable(form, f"an object of kind {document.kind or '(missing)'}", "leave --as out")
        found = objects.convert(document, renaming, self._note, backing=backing)
        return [found] if found else []

    def _netconf(self, form: str | None) -> Any:
        plugin, source = convert_netconf.plugin_of(self._document, self._known)
        renaming = Renaming(source, self._target)
        if form == "installation":
            others = convert_netconf.others_of(self._document, plugin)
            return convert_operator.from_netconf(plugin, others, renaming, self._note)
        if form == "pools":
            raise self._unsuitable(form, "a network configuration", "give an Installation")
        return convert_netconf.convert(self._document, plugin, renaming, self._note)

    def _installation(self, form: str | None, renaming: Renaming, *, backing: bool) -> list[Any]:
        if form == "pools":
            return convert_operator.to_pools(self._document, renaming, backing=backing)
        if form == "netconf":
            return [convert_operator.to_netconf(self._document, renaming, self._note)]
        return [convert_operator.rename(self._document, renaming, self._note)]

    def _note(self, what: str, reason: str) -> None:
        self._notes.append(f"{self._document.title}{what}: {reason}")

    def _unsuitable(self, form: str, what: str, remedy: str) -> CallerError:
        return CallerError(f"{self._document.title}{what} cannot become {form}", details=remedy)


def _show(result: Sequence[Any], output: str) -> None:
    """Print the documents. A single network configuration is JSON, because runtimes read no YAML."""
    if len(result) == 1 and "kind" not in result[0]:
        echo_json(result[0])
    elif output == "json":
        echo_json(result)
    elif result:
        echo_yaml(result)
