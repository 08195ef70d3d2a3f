"""Command: create the certificates of a cluster."""

from __future__ import annotations

from pathlib import Path

import click

from tui.cli.shared.common import Integer
from tui.console.echo import echo


@click.command()
@click.argument("directory", type=click.Path(file_okay=False, path_type=Path))
@click.option("--host", "hosts", multiple=True, metavar="NAME", help="Name or IP address of the scheduler. Repeatable.")
@click.option("--days", type=Integer(min=1, max=3650), default=365, show_default=True, help="Validity in days.")
def certs(directory: Path, hosts: tuple[str, ...], days: int) -> None:
    """Create a CA and certificates for the scheduler, workers and engines.

    With --host, give the name or IP address that workers and engines use to reach the scheduler. The command keeps an
    existing CA that outlives the new certificates, and renews all other certificates. Without --host, renewed
    certificates list the same hosts as before. Anyone who has a certificate and its key can run code on the workers, so
    copy the files over SSH. Keep the CA's key, ca-key.pem, on this machine.
    """
    from engine.cluster.certificates import ROLES, create

    renews = any((directory / f"{role}.pem").exists() for role in ROLES)
    written = create(directory, hosts, days)
    for file in written:
        echo(f"wrote {file}")
    if renews and directory / "ca.pem" in written:
        echo(
            "created a new CA, because the old CA is incomplete or damaged, or expires too soon; hosts trust the new "
            "certificates only after you copy all of them again"
        )
    echo(
        "copy ca.pem to every host, worker*.pem to each GPU host, engine*.pem to the engine's host, and scheduler*.pem "
        "to the scheduler's host"
    )
