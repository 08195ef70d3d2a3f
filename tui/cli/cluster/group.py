"""The command group ``kernel-tui cluster``."""

from __future__ import annotations

import click

from tui.cli.cluster.certs import certs
from tui.cli.cluster.scheduler import scheduler


@click.group()
def cluster() -> None:
    """Create certificates and run a scheduler for several hosts."""


cluster.add_command(certs)
cluster.add_command(scheduler)
