"""Proposers by the provider that a config names. Each is imported only where it is used."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from engine.config import Config, ModelConfig, PlaybookModel
from engine.exit_codes import ExitCode
from engine.proposers.protocol import ALL_ROLES, Proposer

if TYPE_CHECKING:
    from engine.search.journal import Journal
    from engine.session import SessionPaths
    from engine.state import SessionState


class ProposerUnavailable(Exception):
    """A config asks for a proposer that this version does not have."""

    exit_code = ExitCode.USAGE


def make_proposers(
    config: Config, paths: SessionPaths, journal: Journal, state: SessionState, text: Callable[[str], str]
) -> list[tuple[Proposer, float]]:
    """The config's proposers with their weights. ``text`` reads a blob. Raises ``ProposerUnavailable``."""
    check_providers(config)
    made: list[tuple[Proposer, float]] = []
    languages = _Languages(config, paths, journal, state, text)
    for place, model in enumerate(config.models):
        if isinstance(model, PlaybookModel):
            from engine.proposers.playbook import Playbook

            if not any(isinstance(one, Playbook) for one, _ in made):
                made.append((Playbook(), sum(one.weight for one in config.models if isinstance(one, PlaybookModel))))
        else:
            made.append((languages.make(place, model), model.weight))
    return made


def check_providers(config: Config) -> None:
    """Raises ``ProposerUnavailable`` for a provider that this version does not have; imports nothing."""
    for model in config.models:
        if model.provider not in ("playbook", "manual"):
            raise ProposerUnavailable(
                f'{config.path}: models: provider "{model.provider}" is not available in this version, '
                'allowed: "playbook", "manual"'
            )


def model_names(config: Config) -> list[str]:
    """What each of the config's models is called in the session, no two alike (``manual``, ``manual-2``)."""
    names: list[str] = []
    for model in config.models:
        base = str(getattr(model, "label", model.provider))
        same = sum(name == base or name.rpartition("-")[0] == base for name in names)
        names.append(base if not same or model.provider == "playbook" else f"{base}-{same + 1}")
    return names


def prompt_directories(paths: SessionPaths) -> tuple[Path, ...]:
    """Where templates of a person's own lie: in the session, so that it can be copied."""
    return (paths.directory / "prompts",)


class _Languages:
    """Makes the proposers that are language models, and what they share."""

    def __init__(
        self, config: Config, paths: SessionPaths, journal: Journal, state: SessionState, text: Callable[[str], str]
    ) -> None:
        self._config, self._paths, self._journal, self._state, self._text = config, paths, journal, state, text
        self._names = model_names(config)
        self._number = max((int(call.removeprefix("c")) for call in state.spending.calls), default=0)

    def make(self, place: int, model: ModelConfig) -> Proposer:
        from engine.proposers.language import Language
        from engine.proposers.language.prompting import Prompts
        from engine.proposers.mailbox import Mailbox
        from engine.proposers.manual import Manual

        name = self._names[place]
        asking = Manual(name, Mailbox(self._paths.directory), self._journal, self._state, self._next_call, self._text)
        prompts = Prompts(prompt_directories(self._paths))
        return Language(name, place, asking, prompts, ALL_ROLES, self._paths.directory / "prompts")

    def _next_call(self) -> str:
        self._number += 1
        return f"c{self._number}"
