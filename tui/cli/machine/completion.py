"""Command: print a shell's completion script."""

from __future__ import annotations

import click

from tui.console.echo import echo


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print a shell's completion script.

    \b
    bash: eval "$(kernel-tui completion bash)"
    zsh:  eval "$(kernel-tui completion zsh)"
    fish: kernel-tui completion fish | source
    """
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None
    echo(kind(ctx.find_root().command, {}, "kernel-tui", "_KERNEL_TUI_COMPLETE").source())
