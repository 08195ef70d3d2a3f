"""Command: join this host to a cluster."""

from __future__ import annotations

import platform
from pathlib import Path

import click

from engine.exit_codes import ExitCode
from tui.cli.cluster.options import certificates_option, needs_extra
from tui.cli.shared.common import Failure, Integer, run_async
from tui.console.echo import echo


@click.command()
@click.option("--scheduler", required=True, metavar="ADDRESS", help="The scheduler's address, such as tls://gpu1:8786.")
@certificates_option
@click.option(
    "--gpus",
    default="all",
    metavar="LIST",
    help="GPUs to judge kernels on: all, none (use the CPU), or indices such as 0,2.",
)
@click.option(
    "--builders", type=Integer(1, 1024), help="Maximum number of parallel builds.  [default: one per two cores]"
)
@click.option("--name", default="", help="This host's unique name in the monitor.  [default: host name]")
@click.option("--address", default="", metavar="IP", help="Address that the scheduler uses to reach this host.")
def worker(scheduler: str, certificates: Path, gpus: str, builders: int | None, name: str, address: str) -> None:
    """Let this host judge kernels for searches on other hosts.

    The command starts one worker process per GPU, or one for the CPU. This host also builds the kernels, so it needs a
    compiler. Workers may join and leave while a search runs. Ctrl-C disconnects this host.
    """
    from pydantic_core import PydanticCustomError

    from engine.config.cluster_table import scheduler_address

    try:
        scheduler_address(scheduler)
    except PydanticCustomError as error:
        raise Failure(f"--scheduler: {error.message()}", ExitCode.USAGE) from None
    with needs_extra():
        from engine.cluster.worker.process import WorkerSettings
        from engine.cluster.worker.supervisor import NoDevice, choose_devices, run_workers
        from engine.devices.hardware import usable_cores

        try:
            devices = choose_devices(gpus)
        except NoDevice as error:
            raise Failure(str(error), ExitCode.USAGE) from None
        builders = builders or max(1, usable_cores() // 2)
        host = (name or platform.node()).replace("/", "-")
        settings = WorkerSettings(scheduler, str(certificates.absolute()), host, "", 1, address)
        run_async(run_workers(devices, settings, builders, echo))
