"""Command: check this machine."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from engine.exit_codes import ExitCode
from tui.cli.shared.common import json_option, print_json
from tui.console.progress_line import working


@click.command()
@click.argument("config_path", metavar="[CONFIG]", required=False, type=click.Path(path_type=Path))
@json_option
def doctor(config_path: Path | None, as_json: bool) -> None:
    """Check whether this machine can run a search.

    Each failed check says how to fix the problem. With CONFIG, also check the compilers, devices and API keys that
    the config needs. Exit code 7: a search cannot run. Exit code 9: only an API key is missing.
    """
    from engine.config.schema import ConfigError, load_config
    from engine.doctor import run_checks
    from tui.cli.search.begin import problem_faults, say_renamed_keys

    config = load_config(config_path) if config_path is not None else None
    if config is not None:
        say_renamed_keys(config.path)
        if faults := problem_faults(config.path):
            raise ConfigError(config.path, faults)
    with working("looking for GPUs", quiet=as_json) as work:
        findings = run_checks(config, lambda name: work.say(f"checking {name}"))
    if as_json:
        print_json(findings)
    else:
        from tui.console.tables import print_findings

        print_findings(findings)
    if failed := {finding.name for finding in findings if finding.level == "fail"}:
        sys.exit(ExitCode.NO_KEY if failed == {"keys"} else ExitCode.NO_TOOLS)
