"""Command: write a configuration file."""

from __future__ import annotations

import shlex
from pathlib import Path

import click

from tui.cli.shared.common import cannot_write, force_option, refuse_existing
from tui.console.echo import echo
from tui.text.program import program


@click.command()
@click.option(
    "--preset",
    type=click.Choice(["quickstart", "headline", "published"]),
    default="quickstart",
    show_default=True,
    help="quickstart: four CPU-sized problems; headline: eight large problems; published: ten problems, two models.",
)
@force_option
@click.argument("path", type=click.Path(path_type=Path, allow_dash=True), default=Path("config.toml"))
def init(preset: str, force: bool, path: Path) -> None:
    """Write a commented config to PATH (default: config.toml). PATH "-" is standard output."""
    from engine.config.schema import PRESETS, preset_text

    text = preset_text(next(one for one in PRESETS if one == preset))
    if str(path) == "-":
        echo(text.removesuffix("\n"), is_message=False)
        return
    if path.is_dir():
        path = path / "config.toml"
    refuse_existing(path, force=force)
    if path.name.isprintable():  # The name goes into a comment, which a line break would end.
        text = text.replace("kernel-tui config.toml", f"kernel-tui {shlex.quote(path.name)}", 1)
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise cannot_write(path, error) from None
    echo(f"wrote {path}; run it with: {program()} {shlex.quote(str(path))}")
