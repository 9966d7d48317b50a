"""svcctl test."""

import os
import sys

import click
import orjson

from svc.attach.sessions import SessionPool
from svc.cni.call_io import CallInput
from svc.cni.connection_test import probe
from svc.ctl.cli_context import CliContext
from svc.ctl.interrupts import INTERRUPTED


@click.command()
@click.pass_obj
def test(context: CliContext) -> None:
    """Test whether an ADD would reach its servers: the datastore, and the Kubernetes API if the network names one.

    \b
    It creates nothing, and each step has 2 s. Exit status 1 if a step fails; the last line says why. The executable
    with the option -t makes the same test of a network configuration on its standard input.

    \b
    Examples:
      svcctl test
      svcctl --netconf /etc/cni/net.d/10-svc.conflist test
    """
    target = context.target
    document = target.netconf.raw if target.netconf is not None else {}
    if not document:
        raise click.UsageError("no network configuration is known: name one with --netconf")
    sessions = SessionPool(context.open_present)
    try:
        status, lines = probe(lambda _: target.names, sessions, CallInput(target.names.plugin, {}, orjson.dumps(document)))
        click.echo(lines, nl=False)
    except KeyboardInterrupt:
        click.echo("interrupted", err=True)
        status = INTERRUPTED
    sys.stdout.flush()
    os._exit(status)  # threads may still wait for a server
