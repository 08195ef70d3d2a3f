"""The prompt that a language model would be asked next, without asking it: for a person to read or to edit."""

from __future__ import annotations

from msgspec import Struct

from engine.config import Config, PlaybookModel
from engine.events import DeviceFact
from engine.models.protocol import CallSite, Prompt, Purpose
from engine.naming import check_node, named_problem
from engine.proposers.language.prompting import Prompts
from engine.proposers.protocol import NUMBER, UNUSABLE, Task
from engine.search.context import demands_of
from engine.search.telling import Texts, board_of, draft_of, kernel_of, task_of
from engine.state import ProblemState, SessionState


class NothingToAsk(Exception):
    """There is no such question; one sentence."""


class Preview(Struct, frozen=True):
    """``asked``: the prompt waits for its reply already; else it is what would be asked as things stand."""

    site: CallSite
    prompt: Prompt
    asked: bool


def next_prompt(
    state: SessionState,
    config: Config,
    prompts: Prompts,
    texts: Texts,
    problem: str | None = None,
    purpose: Purpose | None = None,
    node: str | None = None,
    waiting_first: bool = False,
) -> Preview:
    """The next prompt about ``node``: ideas for a kernel (or its repair, where it failed), a kernel for an idea.

    Without a node: ideas for the best kernel of ``problem`` (the first one unless given), or for its first kernels;
    with ``waiting_first`` rather the one that waits for its reply longest, where there is one.
    Raises NothingToAsk, UnknownName, and what reading a template or the session raises.
    """
    found = _problem(state, problem, node)
    if waiting_first and node is None and purpose is None:
        for call in state.spending.flying.values():
            if call.site.problem == found.id:
                return Preview(call.site, Prompt.decode(texts.text(call.prompt)), True)
    purpose = purpose or _purpose(state, node)
    task = _task(state, found, config)
    round_number = _round(found)
    if purpose == "kernel":
        preview = _kernel(state, found, task, prompts, texts, round_number, node)
    elif purpose == "fix":
        preview = _fix(state, found, task, prompts, texts, round_number, node)
    else:
        preview = _ideas(state, found, task, prompts, texts, round_number, node, config)
    for call in state.spending.flying.values():
        if call.site == preview.site:
            return Preview(call.site, Prompt.decode(texts.text(call.prompt)), True)
    return preview


def _ideas(
    state: SessionState,
    problem: ProblemState,
    task: Task,
    prompts: Prompts,
    texts: Texts,
    round_number: int,
    node: str | None,
    config: Config,
) -> Preview:
    parent = node if node in state.variants else problem.best
    kernel = None
    if parent is not None and (variant := state.variants[parent]).verdict is not None:
        kernel = kernel_of(state, variant, texts)
    board = board_of(state, problem, round_number, parent, texts)
    place = next((n for n, model in enumerate(config.models) if not isinstance(model, PlaybookModel)), 0)
    site = CallSite(problem.id, round_number, "ideas", parent or "", place)
    return Preview(site, prompts.ideas(task, kernel, board, config.search.ideas), False)


def _kernel(
    state: SessionState,
    problem: ProblemState,
    task: Task,
    prompts: Prompts,
    texts: Texts,
    round_number: int,
    node: str | None,
) -> Preview:
    own = [idea for idea in state.ideas.values() if idea.problem == problem.id]
    idea = state.ideas.get(node or "") or (own[-1] if own else None)
    if idea is None:
        raise NothingToAsk(f"{problem.id} has no idea yet, so there is no prompt for a kernel")
    written = {state.variants[name].data.get(NUMBER) for name in idea.variants}
    number = next(n for n in range(len(written) + 1) if n not in written)
    parent = state.variants.get(idea.parent or "")
    kernel = kernel_of(state, parent, texts) if parent is not None and parent.verdict is not None else None
    board = board_of(state, problem, round_number, idea.parent, texts)
    site = CallSite(problem.id, round_number, "kernel", idea.id, number)
    return Preview(site, prompts.kernel(task, draft_of(idea), kernel, board, number), False)


def _fix(
    state: SessionState,
    problem: ProblemState,
    task: Task,
    prompts: Prompts,
    texts: Texts,
    round_number: int,
    node: str | None,
) -> Preview:
    failed = [one for one in state.variants_of(problem.id) if one.verdict is not None and not one.correct]
    variant = state.variants.get(node or "") or (failed[-1] if failed else None)
    if variant is None or variant.verdict is None or variant.correct:
        raise NothingToAsk(f"{node or problem.id}: no kernel that failed, so there is no prompt for a repair")
    idea = state.ideas[variant.idea]
    turn = 1 + sum(name in idea.variants for name in state.ancestors(variant.id)[1:])
    kernel = kernel_of(state, variant, texts)
    site = CallSite(problem.id, round_number, "fix", variant.id)
    prompt = prompts.fix(task, draft_of(idea), kernel, str(variant.data.get(UNUSABLE, "")), turn)
    return Preview(site, prompt, False)


def _problem(state: SessionState, name: str | None, node: str | None) -> ProblemState:
    owner: str | None = name
    if node is not None:
        check_node(state, node)
        found = state.ideas.get(node) or state.variants.get(node)
        owner = found.problem if found is not None else node
    if not state.problems:
        raise NothingToAsk("this session has no problem yet: start its search first")
    return named_problem(state, owner) if owner is not None else next(iter(state.problems.values()))


def _purpose(state: SessionState, node: str | None) -> Purpose:
    if node in state.ideas:
        return "kernel"
    variant = state.variants.get(node or "")
    return "fix" if variant is not None and variant.verdict is not None and not variant.correct else "ideas"


def _round(problem: ProblemState) -> int:
    """The open round, or the next one."""
    if not problem.rounds:
        return 0
    last = problem.rounds[-1]
    return last.number if last.finished_at is None else last.number + 1


def _task(state: SessionState, problem: ProblemState, config: Config) -> Task:
    device: DeviceFact | None = next(iter(state.devices.values()), None)
    if device is None:
        raise NothingToAsk("no engine has run on this session yet, so its device is unknown")
    return task_of(state, problem, device, demands_of(config, problem.spec))
