"""Shell completion of names inside a session: its problems, ideas and kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import click
from click.shell_completion import CompletionItem

from tui.cli.shared.common import complete_session, find, sessions_root

if TYPE_CHECKING:
    from engine.session.state.session_state import SessionState

Completer = Callable[[click.Context, click.Parameter, str], list[str]]


def _completer(names_of: Callable[[SessionState], Iterable[str]]) -> Completer:
    def complete(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
        from engine.session.state.session_state import fold
        from engine.session.store import SessionError, SessionReader

        session = next((str(given) for name in ("session", "source", "what") if (given := ctx.params.get(name))), "")
        try:
            with SessionReader(find(sessions_root(ctx), session)) as reader:
                state = fold(reader.read())
        except SessionError:
            return []
        return [name for name in names_of(state) if name.startswith(incomplete)]

    return complete


complete_kernel = _completer(lambda state: state.variants)
complete_node = _completer(lambda state: (*state.problems, *state.ideas, *state.variants))


def complete_session_or_file(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    sessions = [CompletionItem(name) for name in complete_session(ctx, parameter, incomplete)]
    return [*sessions, CompletionItem(incomplete, type="file")]
