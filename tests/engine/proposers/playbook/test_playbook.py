"""The playbook as a proposer: refusals, ideas, variants, repairs, and reproducible results."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest

from engine.devices.fact import DeviceFact
from engine.problem.c_header import derive_header
from engine.problem.spec import LANGUAGE_OF_DEVICE, DeviceKind
from engine.proposers.categories import CATEGORY_NAMES
from engine.proposers.playbook import Playbook
from engine.proposers.playbook.base import Recipe
from engine.proposers.playbook.transformations.cpp import vectorize
from engine.proposers.playbook.transformations.summary import difference
from engine.proposers.protocol import Board, IdeaDraft, Kernel, Task, TriedIdea, VariantDraft
from engine.session.records.verdict import Timing, Verdict
from tests.engine.proposers.playbook.cpp_harness import make_problem
from tests.engine.proposers.playbook.wandering import CPU, known

SOFTMAX = "return torch.softmax(x, dim=-1)"
GELU = "return torch.nn.functional.gelu(x)"


def test_one_function_becomes_a_polynomial_and_two_become_polynomials() -> None:
    assert "Exp becomes a polynomial" in vectorize("exp", {}, CPU).text
    assert "Erf and exp become polynomials" in vectorize("erf and exp", {}, CPU).text


def test_a_choice_computed_from_a_size_can_be_stored(tmp_path: Path) -> None:
    spec = make_problem(tmp_path, "return torch.nn.functional.layer_norm(x, (1 << 22,))", {"x": (16, 1 << 22)}).spec
    device = DeviceFact(id="d", kind="cuda", name="d", arch="sm_90a", memory_bytes=1 << 37, cores=132)
    template, program = known(spec, "cu")
    recipe = template.starts(program, spec, device)[-1].recipe.with_({"structure": "split"})
    named = next(one for one in template.transformations(program, recipe, device) if "group_rows" in one.changes)
    made = recipe.with_(named.changes)
    assert msgspec.json.decode(msgspec.json.encode(made), type=Recipe) == made
    assert made.choices["group_rows"] == 2


def task_for(folder: Path, forward: str, kind: DeviceKind = "cpu") -> Task:
    spec = make_problem(folder, forward, {"x": (64, 3000)}).spec
    device = DeviceFact(
        id="d", kind=kind, name="d", arch="sm_90a", memory_bytes=1 << 33, cores=2 if kind == "cpu" else 132
    )
    language = LANGUAGE_OF_DEVICE[kind]
    return Task(spec, derive_header(spec, language), language, device, sol_ms=1.0, eager_ms=4.0)


def judged(name: str, draft: VariantDraft, ms: float) -> Kernel:
    verdict = Verdict(status="correct", speedup=4.0 / ms, kernel=Timing(ms, ms, ms, 10), sol_ms=1.0, sol_share=1.0 / ms)
    return Kernel(name, draft.source, draft.language, verdict, "playbook", draft.data)


def written(
    playbook: Playbook,
    task: Task,
    idea: IdeaDraft,
    parent: Kernel | None,
    siblings: tuple[Kernel, ...],
    count: int,
    seed: int,
) -> list[VariantDraft]:
    async def collect() -> list[VariantDraft]:
        board = Board(kernels=siblings)
        return [draft async for draft in playbook.variants(task, idea, parent, board, range(count), seed)]

    return asyncio.run(collect())


def first_ideas(playbook: Playbook, task: Task, tried: list[IdeaDraft]) -> list[IdeaDraft]:
    failed = tuple(TriedIdea(f"i{k}", None, one.category, one.text, None, one.data) for k, one in enumerate(tried))
    return asyncio.run(playbook.ideas(task, None, Board(tried=failed), 9, 0))


def first_kernels(playbook: Playbook, task: Task, tried: list[IdeaDraft]) -> list[Kernel]:
    ideas = first_ideas(playbook, task, tried)
    drafts = [draft for idea in ideas for draft in written(playbook, task, idea, None, (), 3, 0)]
    return [judged(f"v{place}", draft, 50.0 + place) for place, draft in enumerate(drafts)]


def plain_kernels(playbook: Playbook, task: Task) -> list[Kernel]:
    """Return the first kernels in plain loops, which follow if no tuned kernel is correct."""
    return first_kernels(playbook, task, first_ideas(playbook, task, []))


def ideas_for(
    playbook: Playbook, task: Task, parent: Kernel, tried: tuple[TriedIdea, ...] = (), count: int = 99, seed: int = 0
) -> list[IdeaDraft]:
    return asyncio.run(playbook.ideas(task, parent, Board(tried=tried), count, seed))


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
@pytest.mark.parametrize("forward", [SOFTMAX, GELU])
def test_round_zero_has_ideas_after_it(tmp_path: Path, forward: str, kind: DeviceKind) -> None:
    playbook, task = Playbook(), task_for(tmp_path, forward, kind)
    assert playbook.refusal(task) is None
    kernels = first_kernels(playbook, task, [])
    assert kernels
    assert all("launch(" in kernel.source for kernel in kernels)
    for idea in ideas_for(playbook, task, kernels[0]):
        assert idea.category in CATEGORY_NAMES
        assert len(idea.text) > 60


@pytest.mark.parametrize("forward", [SOFTMAX, GELU])
def test_a_search_in_cpp_begins_with_the_most_profitable_transformations(tmp_path: Path, forward: str) -> None:
    playbook, task = Playbook(), task_for(tmp_path, forward)
    best = first_ideas(playbook, task, [])
    assert all(idea.data["move"].endswith("_tuned") for idea in best)
    for idea in best:
        (draft,) = written(playbook, task, idea, None, (), 1, 0)
        assert "#pragma omp parallel" in draft.source and "vector_size" in draft.source
    plain = first_ideas(playbook, task, best)
    assert plain and not any(idea.data["move"].endswith("_tuned") for idea in plain)
    everything = [*best, *plain]
    assert first_ideas(playbook, task, everything) == everything


def test_what_it_does_not_know_it_says_in_one_sentence(tmp_path: Path) -> None:
    playbook = Playbook()
    refusal = playbook.refusal(task_for(tmp_path, "return x.cummax(-1).values"))
    assert refusal == ("the playbook has no template for problem, because no pattern covers the operator cummax")
    assert playbook.catalogue(task_for(tmp_path, "return x.cummax(-1).values")) == ()


def test_transformations_on_a_kernel_never_repeat_and_run_dry(tmp_path: Path) -> None:
    playbook, task = Playbook(), task_for(tmp_path, SOFTMAX)
    parent = plain_kernels(playbook, task)[-1]
    tried: tuple[TriedIdea, ...] = ()
    names: list[str] = []
    while drafts := ideas_for(playbook, task, parent, tried, count=5):
        names += ["+".join(sorted(draft.data["move"].split("+"))) for draft in drafts]
        tried += tuple(
            TriedIdea(f"i{len(tried) + k}", parent.variant, d.category, d.text, 1.0, d.data)
            for k, d in enumerate(drafts)
        )
        assert len(names) < 500
    assert len(names) == len(set(names)) > 10
    single = [name for name in names if "+" not in name]
    assert names[: len(single)] == single, "transformations are combined only once they are used up"


def test_a_lineage_of_transformations_changes_the_kernel_each_time(tmp_path: Path) -> None:
    playbook, task = Playbook(), task_for(tmp_path, SOFTMAX)
    kernel = plain_kernels(playbook, task)[0]
    siblings = [kernel]
    for generation in range(5):
        idea = ideas_for(playbook, task, kernel, count=1)[0]
        drafts = written(playbook, task, idea, kernel, tuple(siblings), 3, generation)
        assert drafts
        assert not {draft.source for draft in drafts} & {one.source for one in siblings}
        new = [judged(f"g{generation}v{k}", draft, 20.0 / (generation + 1) + k) for k, draft in enumerate(drafts)]
        siblings += new
        kernel = new[0]


def test_the_same_request_gets_the_same_answer(tmp_path: Path) -> None:
    task = task_for(tmp_path, SOFTMAX)
    parent = plain_kernels(Playbook(), task)[1]

    def answer(seed: int) -> tuple[list[IdeaDraft], list[VariantDraft]]:
        playbook = Playbook()
        ideas = ideas_for(playbook, task, parent, seed=seed)
        return ideas, written(playbook, task, ideas[0], parent, (parent,), 5, seed)

    assert answer(3) == answer(3)


def test_memory_transformations_lead_on_a_kernel_near_the_sol(tmp_path: Path) -> None:
    playbook, task = Playbook(), task_for(tmp_path, GELU)
    parent = plain_kernels(playbook, task)[0]
    vector = next(idea for idea in ideas_for(playbook, task, parent) if idea.data["move"] == "vectorise")
    draft = written(playbook, task, vector, parent, (parent,), 1, 0)[0]
    near = [idea.category for idea in ideas_for(playbook, task, judged("near", draft, 1.6))]
    assert near.index("memory") < near.index("compute")


def test_a_transformation_that_failed_elsewhere_comes_later(tmp_path: Path) -> None:
    playbook, task = Playbook(), task_for(tmp_path, SOFTMAX)
    first, second = plain_kernels(playbook, task)
    best = ideas_for(playbook, task, second)[0]
    failed = tuple(TriedIdea(f"i{k}", first.variant, best.category, best.text, 0.01, best.data) for k in range(3))
    after = [idea.data["move"] for idea in ideas_for(playbook, task, second, failed)]
    assert after.index(best.data["move"]) > 0


def test_a_person_seeds_a_transformation_of_the_catalogue_by_name(tmp_path: Path) -> None:
    playbook, task = Playbook(), task_for(tmp_path, SOFTMAX)
    parent = plain_kernels(playbook, task)[0]
    names = [entry.name for entry in playbook.catalogue(task)]
    assert {"vectorise", "online_softmax", "share_rows", "streaming_stores"} <= set(names)
    seeded = IdeaDraft("compute", "", {"move": "vectorise"})
    for kernel in (parent, None):
        drafts = written(playbook, task, seeded, kernel, (), 2, 0)
        assert drafts
        assert all("vector_size" in draft.source for draft in drafts)


def test_nothing_is_derived_from_a_kernel_of_unknown_origin(tmp_path: Path) -> None:
    playbook, task = Playbook(), task_for(tmp_path, SOFTMAX)
    by_hand = judged("v9", VariantDraft("int launch;", "cpp"), 3.0)
    assert ideas_for(playbook, task, by_hand) == []
    assert written(playbook, task, IdeaDraft("compute", "", {"move": "vectorise"}), by_hand, (), 2, 0) == []


def test_the_note_of_a_variant_says_what_differs_from_its_parent(tmp_path: Path) -> None:
    playbook, task = Playbook(), task_for(tmp_path, SOFTMAX)
    start = plain_kernels(playbook, task)[-1]
    wide = judged("wide", written(playbook, task, IdeaDraft("", "", {"move": "vectorise"}), start, (), 1, 0)[0], 20.0)
    drafts = written(playbook, task, IdeaDraft("", "", {"move": "independent_sums"}), wide, (wide,), 3, 0)
    notes = [draft.note for draft in drafts]
    assert notes[0] == "accumulators 1 -> 4"
    assert len(set(notes)) == 3


def test_a_difference_names_sizes_and_switches() -> None:
    parent = {"bm": 64, "bn": 64, "vector": False, "math": "libm", "pack_a": True}
    base = {**parent, "vector": True}
    changed = {**base, "bm": 128, "pack_a": False}
    assert difference(parent, base, changed) == "tile 64x64 -> 128x64, - packed left operand, + vector loads"
    assert difference(parent, base, parent) == ""


def test_a_wrong_kernel_is_tried_again_in_exact_arithmetic_and_once_only(tmp_path: Path) -> None:
    playbook, task = Playbook(), task_for(tmp_path, SOFTMAX)
    parent = plain_kernels(playbook, task)[1]
    idea = next(one for one in ideas_for(playbook, task, parent) if one.data["move"] == "vectorise")
    draft = written(playbook, task, idea, parent, (), 1, 0)[0]
    failed = Kernel("v7", draft.source, "cpp", Verdict(status="wrong"), "playbook", draft.data)
    fixed = asyncio.run(playbook.fix(task, idea, failed, Board(), 1, 0))
    assert fixed is not None
    assert "std::exp" in fixed.source
    again = Kernel("v8", fixed.source, "cpp", Verdict(status="wrong"), "playbook", fixed.data)
    assert asyncio.run(playbook.fix(task, idea, again, Board(), 2, 0)) is None
