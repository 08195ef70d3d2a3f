"""Command: show the monitor of a session in a browser."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import urlsplit

import click

from engine.exit_codes import ExitCode
from engine.system.python_process import python_path
from tui.cli.shared.common import Failure, Integer, find, run_async, sessions_option
from tui.console.echo import echo


@click.command()
@click.argument("session")
@sessions_option
@click.option("--port", default=0, type=Integer(0, 65535), help="Port on this machine.  [default: a free port]")
@click.option("--writable", is_flag=True, help="Let viewers steer the search. By default, viewers only watch.")
@click.option("--public-url", default="", metavar="URL", help="Public URL of the server behind a TLS proxy.")
def serve(session: str, root: Path, port: int, writable: bool, public_url: str) -> None:
    """Show the monitor of a session in a browser.

    The server listens on 127.0.0.1 only. The printed address contains a token; without the token, the server answers
    401. Each page runs its own monitor. Ctrl-C ends the server and its pages. The search continues.

    From another machine, forward the port: ssh -L 8000:127.0.0.1:8000 HOST
    """
    paths = find(root, session)
    if urlsplit(public_url).path.strip("/"):
        raise Failure(f"--public-url {public_url}: give a URL without a path", ExitCode.USAGE)
    try:
        from tui.web.server import MonitorServer, listen
    except ModuleNotFoundError as error:
        raise Failure(
            f"serve needs the package {error.name}: pip install 'kernel-tui[serve]' (from a checkout: '.[serve]')",
            ExitCode.NO_TOOLS,
        ) from error
    try:
        listening = listen(port)
    except OSError as error:
        raise Failure(f"cannot listen on port {port}: {error.strerror}; choose another with --port") from error
    server = MonitorServer(paths, listening, writable=writable, public_url=public_url)
    echo(f"{paths.name}, {'viewers may steer' if writable else 'read-only'}: {server.address}")
    os.environ["PYTHONPATH"] = python_path()  # The viewers' processes inherit it.
    run_async(server.run())
