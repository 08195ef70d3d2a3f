"""Find the proposers that can write kernels for a problem, and suggest remedies if there are none.

The check is cheap, because the playbook only inspects the problem's traced graph. This module never imports torch.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from engine.devices.fact import DeviceFact
from engine.problem.spec import LANGUAGE_NAMES, LANGUAGE_OF_DEVICE, Language, ProblemSpec
from engine.proposers.protocol import Task

if TYPE_CHECKING:
    from engine.config.schema import Config

MANUAL_TABLE = '[[models]]\nprovider = "manual"    # you answer the prompts, for example with a chat window'
MODEL_TABLE = '[[models]]\nprovider = "openai"    # export OPENAI_API_KEY=...\nmodel = "gpt-5.5"'
_ANY_DEVICE = {
    "cu": DeviceFact("cuda", "cuda", "", "", 0, 0),
    "cpp": DeviceFact("cpu", "cpu", "", "", 0, 0),
}


class Writer(Struct, frozen=True):
    """Whether a proposer can write kernels for a problem. ``refusal`` is the reason if the proposer cannot, and "" if
    it can.
    """

    proposer: str
    languages: tuple[Language, ...]
    refusal: str = ""


def writers_of(config: Config | None, problem: ProblemSpec) -> tuple[Writer, ...]:
    """List the languages in which each proposer of ``config`` can write kernels for ``problem``. Without a config, list
    only the playbook's languages.

    The list omits recordings (``replay``), because their content depends on the recorded session.
    """
    if config is None:
        return (_playbook(problem, "playbook"),)
    from engine.config.schema import PlaybookModel, ReplayModel
    from engine.proposers.registry import model_names

    named = dict(zip(model_names(config), config.models, strict=True))
    return tuple(
        _playbook(problem, name) if isinstance(model, PlaybookModel) else Writer(name, problem.languages)
        for name, model in named.items()
        if not isinstance(model, ReplayModel)
    )


def _playbook(problem: ProblemSpec, name: str) -> Writer:
    refusals = {language: playbook_refusal(problem, language) for language in problem.languages}
    able = tuple(language for language, refusal in refusals.items() if refusal is None)
    reasons = [refusal for refusal in refusals.values() if refusal is not None]
    return Writer(name, able, "" if able else next(iter(reasons), "the judge cannot evaluate kernels for this problem"))


def playbook_refusal(problem: ProblemSpec, language: Language) -> str | None:
    """Return a one-sentence reason why the playbook cannot write ``language`` kernels for ``problem``. Return None if
    the playbook can write them.
    """
    return _refusal(problem, language, _ANY_DEVICE["cu" if language == "cu" else "cpp"])


def _refusal(problem: ProblemSpec, language: Language, device: DeviceFact) -> str | None:
    from engine.proposers.playbook import Playbook

    return Playbook().refusal(Task(problem, "", language, device, None, None))


def refusal_on(problem: ProblemSpec, device: str) -> str | None:
    """Return the full reason why the playbook cannot write kernels for ``problem`` on ``device``; None if it can.

    ``device`` is ``cpu`` or a GPU architecture such as ``sm_90a``. This machine does not need to have that GPU.
    """
    fact = _ANY_DEVICE["cpp"] if device == "cpu" else replace(_ANY_DEVICE["cu"], arch=device)
    language = LANGUAGE_OF_DEVICE[fact.kind]
    if language not in problem.languages:
        return problem.c_refusal or f"the judge cannot evaluate {LANGUAGE_NAMES[language]} kernels for this problem"
    return _refusal(problem, language, fact)


def why_nobody(c_refusal: str | None, refusals: Sequence[str | None]) -> str | None:
    """Combine the reasons why no proposer can write kernels for a problem.

    Returns None if at least one proposer can write kernels.
    """
    if any(refusal is None for refusal in refusals):
        return None
    reasons = dict.fromkeys(reason for reason in (c_refusal, *refusals) if reason)
    return "; ".join(reasons) or "the config has no proposer that writes kernels"


def remedies(problem: str, language: Language, session: str) -> tuple[str, ...]:
    """Return remedies for a problem that no proposer supports. ``session`` names the session in a shell command."""
    return (
        f"Seed a kernel: press a in the monitor, or run: kernel-tui seed-kernel {session} kernel.{language} --problem "
        f"{shlex.quote(problem)}",
        add_a_table(),
    )


def add_a_table() -> str:
    """Return a remedy: add a person or a model to the config, because either can write kernels for every problem."""
    return (
        "Or add one of these tables to the config, and run the config with --new to start a new "
        f"session:\n{MANUAL_TABLE}\n\n{MODEL_TABLE}"
    )
