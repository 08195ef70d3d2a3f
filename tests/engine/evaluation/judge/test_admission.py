"""Memory that a request waits for, and recovery of a device that has run out of it."""

from __future__ import annotations

import pytest

from engine.evaluation.judge.admission import (
    Need,
    after_running_out,
    intermediate_bytes,
    need_of,
    needed_bytes,
    ran_out_of_memory,
    undecided,
    with_the_whole_device,
)
from engine.evaluation.judge.messages import Failed, Judged
from engine.evaluation.judge_policy import POLICY
from engine.problem.spec import GraphNode, ProblemSpec, TensorSpec
from engine.session.records.verdict import Status, Timing, Verdict
from engine.system.memory import Memory

GB = 10**9
DEVICE = 80 * GB


def problem(gigabytes: float, graph: tuple[GraphNode, ...] | None = None) -> ProblemSpec:
    """Half of it are inputs, half outputs."""
    shape = (int(gigabytes * GB / 8),)
    tensors = (TensorSpec("x", "input", "float32", shape), TensorSpec("out", "output", "float32", shape))
    return ProblemSpec(id="p", name="p", path="p.py", source="", tensors=tensors, graph=graph)


def test_a_large_problem_needs_more_and_all_checks_most() -> None:
    small, large = need_of(problem(0.01), "cuda"), need_of(problem(5), "cuda")
    for need in (small, large):
        assert need.must_bytes < need.least_bytes < need.full_bytes
    assert 25 * GB < large.least_bytes < 35 * GB, "slot, trials, inputs, a run of the reference and one of the kernel"
    assert large.full_bytes >= large.least_bytes + 12 * 5 * GB, "fp64 takes six times as much, of half of what is free"
    assert small.least_bytes < 3 * GB
    assert need_of(problem(5), "cpu") == Need(10 * GB, 10 * GB, 10 * GB)
    assert need_of(None, "cpu") == Need(0, 0, 0) and need_of(None, "cuda").must_bytes == 0


def test_intermediate_results_count_while_something_uses_them() -> None:
    def call(name: str, *uses: str) -> GraphNode:
        return GraphNode(name, "call", "aten.exp.default", tuple({"ref": one} for one in uses), {}, (250,), "float32")

    chain = (
        GraphNode("x", "placeholder", "x"),
        call("a", "x"),
        call("b", "a"),
        call("c", "b"),
        GraphNode("output", "output", "output", ({"ref": "c"},)),
    )
    assert intermediate_bytes(problem(1, chain)) == 2 * 1000, "one is read while the next one is written"
    kept = (*chain[:3], call("c", "b", "a"), chain[4])
    assert intermediate_bytes(problem(1, kept)) == 3 * 1000
    assert intermediate_bytes(problem(1)) == GB // 2, "not traced: as much as the outputs"


def test_who_waits_longer_asks_for_less_and_nobody_for_more_than_a_device_alone_has() -> None:
    need = need_of(problem(2), "cuda")
    asked = [needed_bytes(need, DEVICE, waited_s) for waited_s in (0.0, 6.0, 61.0)]
    assert asked == [min(need.full_bytes, asked[0]), need.least_bytes, need.must_bytes]
    huge = need_of(problem(30), "cuda")
    for waited_s in (0.0, 6.0):
        assert needed_bytes(huge, DEVICE, waited_s) == int(0.85 * DEVICE) - POLICY.admission.context_bytes
    five_idle_judges = 5 * POLICY.admission.context_bytes
    assert needed_bytes(huge, DEVICE, 0.0) < DEVICE - five_idle_judges


def test_a_request_that_ran_out_waits_for_more_until_it_has_had_the_whole_device() -> None:
    tries, free = 0, 2 * GB
    while (need := after_running_out(Memory(free, DEVICE))) is not None:
        asked = needed_bytes(need, DEVICE, 1000.0)
        assert free < asked < DEVICE
        tries, free = tries + 1, asked
    assert 2 < tries < 20


def judged(status: Status, reason: str) -> Judged:
    return Judged(Verdict(status=status, reason=reason, kernel=Timing(1.0, 1.0, 1.0, 8), speedup=2.0))


OUT = "OutOfMemoryError: CUDA out of memory. Tried to allocate 90.00 GiB. GPU 0 has a total capacity of 79.10 GiB"


@pytest.mark.parametrize(
    ("answer", "ran_out"),
    [
        (judged("memory", "the device ran out of memory while the kernel was loaded"), True),
        (judged("crashed", OUT), True),
        (judged("crashed", "launch returned 2"), True),
        (judged("build_error", "cuMemAlloc_v2: out of memory (2)"), True),
        (judged("error", "the runner could not start: cuMemAlloc_v2: out of memory (2)"), True),
        (
            judged(
                "crashed", "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"
            ),
            True,
        ),
        (Failed("the problem needs more memory than the device has (it requested 12 GiB); choose smaller sizes"), True),
        (Failed(f"v7, which was right when it was judged, comes to an end: {OUT}", "v7"), True),
        (judged("error", 'the judge ran out of device memory in its check "right"; judge the kernel again'), True),
        (judged("crashed", "launch returned 209"), False),
        (judged("crashed", "SIGSEGV ended the kernel"), False),
        (judged("wrong", "wrote out of memory of its own"), False),
        (Failed("RuntimeError: shapes cannot be multiplied"), False),
    ],
)
def test_what_tells_of_a_device_without_memory(answer: Judged | Failed, ran_out: bool) -> None:
    assert ran_out_of_memory(answer) is ran_out


def test_a_kernel_that_asks_for_more_than_the_device_has_is_told_so() -> None:
    found = with_the_whole_device(judged("crashed", OUT))
    assert isinstance(found, Judged) and found.verdict.status == "memory"
    assert found.verdict.reason.startswith("the kernel requested more memory than the device has: OutOfMemoryError")
    failed = Failed("the problem needs more memory than the device has; choose smaller sizes")
    assert with_the_whole_device(failed) == failed


def test_others_who_hold_the_memory_are_no_verdict_about_a_kernel() -> None:
    answer = undecided(judged("crashed", OUT), Memory(20 * GB, DEVICE))
    assert isinstance(answer, Judged) and answer.verdict.status == "error" and answer.verdict.speedup is None
    assert "while other processes occupied 60 GB of its 80 GB" in answer.verdict.reason
    failed = undecided(Failed("v7 comes to an end", "v7"), Memory(20 * GB, DEVICE))
    assert isinstance(failed, Failed) and failed.variant is None
