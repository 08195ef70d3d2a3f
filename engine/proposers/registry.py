"""Create the proposers that a config names. The registry imports only the modules of these proposers."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from engine.config.schema import CalledModel, CommandModel, Config, ModelConfig, PlaybookModel, ReplayModel
from engine.exit_codes import ExitCode
from engine.proposers.protocol import Proposer
from engine.session.store.errors import of_os

if TYPE_CHECKING:
    from engine.proposers.llm.proposer import Asking
    from engine.session.journal import Journal
    from engine.session.state.session_state import SessionState
    from engine.session.store import SessionPaths


class ProposerUnavailable(Exception):
    """The config names a proposer that the engine cannot create."""

    exit_code = ExitCode.USAGE


def make_proposers(
    config: Config, paths: SessionPaths, journal: Journal, state: SessionState, text: Callable[[str], str]
) -> list[tuple[Proposer, float]]:
    """Create the config's proposers with their weights. ``text`` reads a blob by its digest. Raises
    ``ProposerUnavailable``.
    """
    made: list[tuple[Proposer, float]] = []
    languages: _Languages | None = None
    for place, model in enumerate(config.models):
        if isinstance(model, PlaybookModel):
            from engine.proposers.playbook import Playbook

            if not any(isinstance(one, Playbook) for one, _ in made):
                made.append((Playbook(), sum(one.weight for one in config.models if isinstance(one, PlaybookModel))))
        elif isinstance(model, ReplayModel):
            from engine.proposers.replay import Replay

            made.append((Replay(model.session, journal, state), model.weight))
        else:
            languages = languages or _Languages(config, paths, journal, state, text)
            made.append((languages.make(place, model), model.weight))
    return made


def reads_prose(provider: str) -> bool:
    """Return whether a provider's proposers turn an idea in prose into kernels. Imports their module."""
    kind: type[Proposer]
    match provider:
        case "playbook":
            from engine.proposers.playbook import Playbook as kind
        case "replay":
            from engine.proposers.replay import Replay as kind
        case _:
            from engine.proposers.llm.proposer import Language as kind
    return kind.reads_prose


def check_providers(config: Config) -> None:
    """Check keys, programs, prices and templates before a search begins. Raises ``ProposerUnavailable``,
    ``KeyMissing``, ``ProgramMissing`` or ``PriceUnknown``.
    """
    called = [model for model in config.models if isinstance(model, CalledModel)]
    if called:
        from engine.proposers.llm.calls.connect import check_prices
        from engine.proposers.llm.clients.command.program import check_program
        from engine.proposers.llm.clients.keys import check_key

        for model in called:
            check_key(model)
            if isinstance(model, CommandModel):
                check_program(model)
        check_prices(config)
    if config.prompts.directory is not None:
        _check_templates(config)


def _check_templates(config: Config) -> None:
    from engine.proposers.llm.prompting import Prompts, TemplateProblem

    directory = config.prompts.directory
    if directory is None or not directory.is_dir():
        raise ProposerUnavailable(f"{config.path}: prompts.directory: {directory} is not a directory. Correct the path")
    try:
        Prompts((directory,)).check()
    except TemplateProblem as error:
        raise ProposerUnavailable(f"{config.path}: prompts.directory: {error}") from None


def model_names(config: Config) -> list[str]:
    """Return the names of the config's models in the session (``manual``, ``manual-2``). Playbooks share one name."""
    names: list[str] = []
    for model in config.models:
        base = str(getattr(model, "label", model.provider))
        same = sum(name == base or name.rpartition("-")[0] == base for name in names)
        names.append(base if not same or model.provider == "playbook" else f"{base}-{same + 1}")
    return names


def own_prompts(paths: SessionPaths) -> Path:
    """Return the directory for a session's own templates and edited prompts. The directory is part of the session, so
    copies include it.
    """
    return paths.directory / "prompts"


class _Languages:
    """Create a config's language models, with the objects that the models share."""

    def __init__(
        self, config: Config, paths: SessionPaths, journal: Journal, state: SessionState, text: Callable[[str], str]
    ) -> None:
        from engine.proposers.llm.calls.connect import make_callers
        from engine.proposers.llm.prompting import Prompts
        from engine.proposers.partial_replies import Partials

        self._paths, self._journal, self._state, self._text = paths, journal, state, text
        self._names = model_names(config)
        self._callers = make_callers(config, state, journal)
        _adopt_templates(config, paths, state)
        self._prompts = Prompts((own_prompts(paths),))
        self._partials = Partials(paths.directory)
        self._partials.sweep()

    def make(self, place: int, model: ModelConfig) -> Proposer:
        from engine.proposers.llm.proposer import Language

        name = self._names[place]
        roles, edits = frozenset(model.roles), own_prompts(self._paths)
        asking = self._asking(name, getattr(model, "key_variable", None))
        return Language(name, place, asking, self._prompts, roles, edits, self._partials)

    def _asking(self, name: str, variable: str | None) -> Asking:
        if (caller := self._callers.get(name)) is not None:
            from engine.proposers.llm.remote import Remote

            return Remote(caller, self._state, self._text, variable)
        from engine.proposers.mailbox import Mailbox
        from engine.proposers.manual import Manual

        new_call = self._state.spending.new_call
        return Manual(name, Mailbox(self._paths.directory), self._journal, self._state, new_call, self._text)


def _adopt_templates(config: Config, paths: SessionPaths, state: SessionState) -> None:
    """Copy the config's templates into a new session. Raises ``ProposerUnavailable`` or ``SessionError``."""
    if config.prompts.directory is None or state.starts:
        return
    _check_templates(config)
    own = own_prompts(paths)
    try:
        own.mkdir(exist_ok=True)
        for template in config.prompts.directory.glob("*.j2"):
            shutil.copyfile(template, own / template.name)
    except OSError as error:
        raise of_os(error, own) from error
