"""Command: run the scheduler of a cluster."""

from __future__ import annotations

from pathlib import Path

import click

from tui.cli.cluster.options import certificates_option, needs_extra
from tui.cli.shared.common import Failure, Integer, run_async
from tui.console.echo import echo


@click.command()
@certificates_option
@click.option("--host", default="", help="Interface to listen on: a host name or an IP address.  [default: all]")
@click.option("--port", type=Integer(0, 65535), default=8786, show_default=True, help="Port, or 0 for any free port.")
def scheduler(certificates: Path, host: str, port: int) -> None:
    """Run the scheduler, which connects workers and engines.

    The scheduler needs no GPU. Ctrl-C ends it. Without a scheduler, workers and engines wait.
    """
    with needs_extra():
        from engine.cluster.scheduler import run_scheduler

        def on_ready(address: str) -> None:
            echo(f"scheduler at {address}")
            echo(f"to add a worker: kernel-tui worker --scheduler {address} --certificates DIRECTORY")

        try:
            run_async(run_scheduler(host, port, certificates, on_ready))
        except OSError as error:
            raise Failure(
                f"cannot listen on port {port}: {error.strerror or error}; choose another with --port"
            ) from None
