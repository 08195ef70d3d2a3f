"""Commands that send a request to a running search: pause, unpause, stop, prune, restore, pin, unpin and retry."""

from __future__ import annotations

from pathlib import Path

import click

from tui.cli.shared.completion import complete_kernel, complete_node
from tui.cli.steering.send import request_options, send


def _node_command(name: str, kind: str, text: str) -> click.Command:
    @click.command(name, help=text)
    @request_options
    @click.argument("node", shell_complete=complete_node)
    def command(session: str, node: str, root: Path, as_json: bool) -> None:
        from engine.session.records import requests

        send(root, session, getattr(requests, kind)(node=node), as_json)

    return command


def _plain_command(name: str, kind: str, text: str) -> click.Command:
    @click.command(name, help=text)
    @request_options
    def command(session: str, root: Path, as_json: bool) -> None:
        from engine.session.records import requests

        send(root, session, getattr(requests, kind)(), as_json)

    return command


@click.command()
@request_options
@click.option(
    "--after-round",
    is_flag=True,
    help="Finish the running rounds first, but leave torch.compile times to a resume. With minutes_per_problem, the "
    "search still times torch.compile before a turn ends.",
)
@click.option("--cancel", is_flag=True, help="Cancel a stop that --after-round or the key S planned.")
def stop(session: str, after_round: bool, cancel: bool, root: Path, as_json: bool) -> None:
    """Stop the search. To start again: kernel-tui resume"""
    from engine.session.records.requests import CancelStop, Stop

    if after_round and cancel:
        raise click.UsageError("--after-round plans a stop, and --cancel cancels it; use one of them")
    send(root, session, CancelStop() if cancel else Stop(after_round=after_round), as_json)


@click.command()
@request_options
@click.argument("variant", shell_complete=complete_kernel)
def retry(session: str, variant: str, root: Path, as_json: bool) -> None:
    """Judge a kernel again. VARIANT is the kernel, such as v34."""
    from engine.session.records.requests import Retry

    send(root, session, Retry(variant=variant), as_json)


pause = _plain_command("pause", "Pause", "Stop starting evaluations; running evaluations finish.")
unpause = _plain_command("unpause", "Resume", "Start evaluations again after a pause.")
prune = _node_command(
    "prune",
    "Prune",
    "Exclude a branch from the search.\n\n"
    "NODE is a problem, an idea (i12) or a kernel (v34). The branch is NODE and all its descendants. To undo: "
    "kernel-tui restore",
)
restore = _node_command("restore", "Restore", "Undo a prune.\n\nNODE is the pruned problem, idea or kernel.")
pin = _node_command(
    "pin",
    "Pin",
    "Always select the fastest kernel of a branch as a parent.\n\n"
    "NODE is an idea (i12) or a kernel (v34). The branch is NODE and all its descendants. To undo: "
    "kernel-tui unpin",
)
unpin = _node_command("unpin", "Unpin", "Undo a pin.\n\nNODE is the pinned idea or kernel.")
