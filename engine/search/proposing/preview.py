"""Preview the next prompt to a language model, for a person to read or edit. This module sends nothing."""

from __future__ import annotations

from msgspec import Struct

from engine.config.schema import Config, PlaybookModel
from engine.devices.fact import DeviceFact
from engine.proposers.llm.model_protocol import Prompt
from engine.proposers.llm.prompting import Prompts
from engine.proposers.protocol import NUMBER, UNUSABLE, Task
from engine.search.context import demands_of
from engine.search.proposing.proposer_context import Texts, board_of, draft_of, kernel_of, task_of
from engine.session.records.model_calls import CallSite, Purpose
from engine.session.state.node_names import check_node, named_problem
from engine.session.state.session_state import ProblemState, SessionState


class NothingToAsk(Exception):
    """The search has no next prompt for this node. The message gives the reason."""


class Preview(Struct, frozen=True):
    """A prompt. ``asked``: whether the engine has sent this prompt and is waiting for a reply."""

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
    """Build the next prompt about ``node``. For a kernel, the prompt requests ideas or, if the kernel failed, a repair.
    For an idea, the prompt requests a kernel.

    Without a node, the prompt requests ideas for the best kernel of ``problem`` (default: the first problem). If there
    is no best kernel, the prompt requests ideas for a first kernel. If ``waiting_first``, prefer the prompt that has
    waited longest for a reply.

    Raises:
        NothingToAsk: The search has no next prompt for ``node``.
        UnknownName: The session contains no such problem or node.
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
        raise NothingToAsk(
            f"{problem.id} has no ideas yet, so there is no kernel to write; add an idea with: kernel-tui seed-idea"
        )
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
        raise NothingToAsk(f"{node or problem.id} has no failed kernel to repair; name another kernel")
    idea = state.ideas[variant.idea]
    turn = 1 + sum(name in idea.variants for name in state.ancestors(variant.id)[1:])
    kernel = kernel_of(state, variant, texts)
    site = CallSite(problem.id, round_number, "fix", variant.id)
    board = board_of(state, problem, round_number, variant.id, texts)
    prompt = prompts.fix(task, draft_of(idea), kernel, board, str(variant.data.get(UNUSABLE, "")), turn)
    return Preview(site, prompt, False)


def _problem(state: SessionState, name: str | None, node: str | None) -> ProblemState:
    owner: str | None = name
    if node is not None:
        check_node(state, node)
        found = state.ideas.get(node) or state.variants.get(node)
        owner = found.problem if found is not None else node
    if not state.problems:
        raise NothingToAsk("this session has no problems yet; start its search with: kernel-tui resume SESSION")
    return named_problem(state, owner) if owner is not None else next(iter(state.problems.values()))


def _purpose(state: SessionState, node: str | None) -> Purpose:
    if node in state.ideas:
        return "kernel"
    variant = state.variants.get(node or "")
    return "fix" if variant is not None and variant.verdict is not None and not variant.correct else "ideas"


def _round(problem: ProblemState) -> int:
    """Return the open round's number or, if no round is open, the next round's number."""
    if not problem.rounds:
        return 0
    last = problem.rounds[-1]
    return last.number if last.finished_at is None else last.number + 1


def _task(state: SessionState, problem: ProblemState, config: Config) -> Task:
    device: DeviceFact | None = next(iter(state.devices.values()), None)
    if device is None:
        raise NothingToAsk("this session has no device yet; start its search with: kernel-tui resume SESSION")
    return task_of(state, problem, device, demands_of(config.evaluation, problem.spec))
