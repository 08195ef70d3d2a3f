"""The judge accepts correct kernels, rejects wrong ones with a reason, and names cheats."""

from __future__ import annotations

import asyncio
import re
import time
from pathlib import Path

import pytest

from engine.evaluation.evaluator import EvaluationError
from engine.evaluation.judge_policy import POLICY
from engine.session.records.verdict import Verdict
from tests.engine.evaluation.conftest import COLUMNS, PROBLEM, ROWS, Bench
from tests.engine.evaluation.kernels import softmax


def test_a_right_kernel_is_correct_with_evidence(bench: Bench) -> None:
    verdict = bench.judge(softmax(bench.language))
    assert verdict.correct, verdict.reason
    assert verdict.speedup is not None and verdict.kernel is not None and verdict.reference is not None
    assert verdict.speedup_low is not None and verdict.speedup_high is not None
    assert verdict.speedup_low <= verdict.speedup <= verdict.speedup_high
    assert verdict.pairs >= 6
    assert verdict.max_rel_error is not None and verdict.max_rel_error < 1e-4
    assert all(check.passed for check in verdict.checks)
    assert any(check.detail.endswith(" trials, two poison patterns") for check in verdict.checks), "no weights"
    assert {"build", "start", "check", "timing"} <= set(verdict.stage_s)
    assert "seccomp" in verdict.sandbox


def test_a_settled_verdict_has_enough_pairs_with_outliers(bench: Bench) -> None:
    verdict = bench.judge(softmax(bench.language))
    (timed,) = [check.detail for check in verdict.checks if check.name == "right while timed"]
    with_outliers = re.search(r"(\d+) with outliers", timed)
    assert with_outliers is not None, timed
    assert verdict.speedup is not None
    assert verdict.speedup < POLICY.pairs.far or int(with_outliers[1]) >= POLICY.pairs.least_outliers, timed


def test_a_wrong_factor_is_wrong_with_place_and_values(bench: Bench) -> None:
    if bench.language == "cu":
        scale = {
            "after": "scale<<<1, 1, 0, stream>>>(out);",
            "outside": "__global__ void scale(float* o) { o[5] *= 2; }",
        }
    else:
        scale = {"after": "out[5] *= 2;"}
    verdict = bench.judge(softmax(bench.language, **scale))
    assert verdict.status == "wrong"
    assert "first is at [0, 5]" in verdict.reason and "expected" in verdict.reason


def test_zeros_and_the_mean_do_not_pass(bench: Bench) -> None:
    for value in ("0.0f", f"{1 / COLUMNS}f"):
        if bench.language == "cu":
            source = f"""
            __global__ void fill(float* out) {{
                long long i = blockIdx.x * 256LL + threadIdx.x;
                if (i < x_numel) out[i] = {value};
            }}
            extern "C" int launch(const float*, float* out, void*, cudaStream_t s) {{
                fill<<<{-(-ROWS * COLUMNS // 256)}, 256, 0, s>>>(out);
                return 0;
            }}"""
        else:
            source = f"""
            extern "C" int launch(const float*, float* out, void*) {{
                for (long long i = 0; i < x_numel; i++) out[i] = {value};
                return 0;
            }}"""
        assert bench.judge(source).status == "wrong"


def test_right_only_on_the_first_calls_is_found(bench: Bench) -> None:
    lazy = {"outside": "static int calls = 0;", "before": "if (++calls > 12) return 0;"}
    verdict = bench.judge(softmax(bench.language, **lazy))
    assert verdict.status == "wrong"
    assert "unwritten" in verdict.reason


def test_a_kernel_that_does_not_compile_says_where(bench: Bench) -> None:
    verdict = bench.judge(softmax(bench.language, before="int a = undeclared;"))
    assert verdict.status == "build_error"
    assert "undeclared" in verdict.reason and verdict.build is not None and not verdict.build.ok


def test_a_kernel_without_launch_is_told_the_signature(bench: Bench) -> None:
    verdict = bench.judge("int forward() { return 0; }")
    assert verdict.status == "build_error"
    assert "launch(const float* x, float* out" in verdict.reason


def test_a_wrong_signature_does_not_compile(bench: Bench) -> None:
    verdict = bench.judge('extern "C" int launch(const float* x, double* out) { return 0; }')
    assert verdict.status == "build_error"


def test_workspace_is_given_and_does_not_start_at_zero(bench: Bench) -> None:
    needs = {"outside": 'extern "C" size_t workspace_bytes(void) { return 4096; }'}
    verdict = bench.judge(softmax(bench.language, **needs))
    assert verdict.correct, verdict.reason
    assert any("workspace 4,096 bytes" in check.detail for check in verdict.checks)


def test_a_workspace_that_no_memory_holds_is_refused(bench: Bench) -> None:
    wants = {"outside": 'extern "C" size_t workspace_bytes(void) { return (size_t)-1; }'}
    verdict = bench.judge(softmax(bench.language, **wants))
    assert (verdict.status, verdict.reason) == (
        "build_error",
        f"the runner cannot allocate a workspace of {2**64 - 1:,} bytes",
    )


@pytest.mark.serial
@pytest.mark.usefixtures("quiet_machine")
def test_a_clock_that_lies_is_found(bench: Bench) -> None:
    if bench.language == "cu":
        return  # the runner reads events; tests/exploits has the CUDA versions
    patch = """
    static bool patched = false;
    if (!patched) {
        patched = true;
        // overwrite the entry of libc's clock_gettime in this process
        void* real = dlsym(RTLD_NEXT, "clock_gettime");
        char* page = (char*)((unsigned long)real & ~4095UL);
        if (mprotect(page, 8192, PROT_READ | PROT_WRITE | PROT_EXEC) == 0) {
            unsigned char jump[12] = {0x48, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xe0};
            void* target = (void*)fake;
            __builtin_memcpy(jump + 2, &target, 8);
            __builtin_memcpy(real, jump, 12);
        }
    }
    """
    fake = """
    #include <dlfcn.h>
    #include <sys/mman.h>
    #include <time.h>
    static long long ticks = 0;
    static int fake(clockid_t, struct timespec* t) { ticks += 1000; t->tv_sec = 5; t->tv_nsec = ticks; return 0; }
    """
    verdict = bench.judge(softmax(bench.language, outside=fake, before=patch))
    # At the point where the fake clock meets the real one, a negative time reveals it.
    assert verdict.status in ("cheating", "forbidden"), (verdict.status, verdict.reason)
    assert verdict.pattern == "misreports its time" or "forged its times" in verdict.reason


_TAKE_THE_SOCKET = """
#include <chrono>
#include <cstring>
#include <sys/socket.h>
#include <unistd.h>
#include <fcntl.h>
// Answers the judge itself: finds the control socket among the descriptors and runs the loop with times of its own.
static int control() {
    for (int fd = 3; fd < 64; fd++) {
        int kind = 0;
        socklen_t size = sizeof kind;
        if (getsockopt(fd, SOL_SOCKET, SO_TYPE, &kind, &size) == 0 && kind == SOCK_SEQPACKET) return fd;
    }
    return -1;
}

"""


def _socket_thief(language: str, answer: str) -> str:
    """A correct kernel that sends its first reply itself."""
    before = f"""
    static int calls = 0;
    if (++calls == 9) {{
        const char* text = {answer};
        if (send(control(), text, strlen(text), 0) < 0) return 31;
    }}
    """
    return softmax(language, outside=_TAKE_THE_SOCKET, before=before)


@pytest.mark.parametrize(
    "answer",
    [
        r'"{\"code\":0,\"ms\":[NaN]}"',
        r'"{\"code\":0,\"ms\":[-1]}"',
        r'"{\"code\":0,\"ms\":[1e9]}"',
        r'"{\"code\":0}"',
        r'"[1]"',
        r'"{{{{"',
        r'"{\"code\":0,\"ms\":[1' + 400 * "0" + r']}"',
        r'"{\"ended\":9}"',
    ],
)
def test_a_forged_answer_is_a_verdict_and_nothing_worse(bench: Bench, answer: str) -> None:
    if bench.language == "cu":
        pytest.skip("CUDA has sockets of its own to be mistaken for it; the answer is read by the same code")
    verdict = bench.judge(_socket_thief(bench.language, answer.replace("\\\\", "\\")))
    assert verdict.status == "forbidden", (verdict.status, verdict.reason)
    assert "forged" in verdict.reason
    assert bench.judge(softmax(bench.language)).correct


def test_words_that_are_no_text_do_not_end_the_judge(bench: Bench) -> None:
    if bench.language == "cu":
        pytest.skip("CUDA has sockets of its own to be mistaken for it; the answer is read by the same code")
    verdict = bench.judge(_socket_thief(bench.language, r'"{\"code\":7,\"error\":\"\\ud800\"}"'))
    assert verdict.status == "forbidden" and "forged" in verdict.reason, (verdict.status, verdict.reason)


@pytest.mark.serial
@pytest.mark.usefixtures("quiet_machine")
def test_threads_that_outlive_a_call_stand_still_until_the_next(bench: Bench) -> None:
    if bench.language == "cu":
        pytest.skip("a thread of the processor does not slow a GPU")
    burn = {
        "outside": '#include <pthread.h>\nstatic void* burn(void*) { for (;;) asm volatile(""); }',
        "before": "static int calls = 0; pthread_t t; if (++calls == 1) pthread_create(&t, nullptr, burn, nullptr);",
    }
    burning, alone = bench.judge(softmax(bench.language, **burn)), bench.judge(softmax(bench.language))
    assert alone.correct, alone.reason
    if burning.status == "cheating":  # it ran for a moment before it was stopped, and was noticed
        assert burning.pattern in ("works between the calls", "misreports its time")
    else:
        assert burning.correct and burning.speedup_low is not None and alone.speedup_high is not None, burning.reason
        # It took no time from the reference, but perhaps some from itself.
        assert burning.speedup_low < 1.6 * alone.speedup_high


def test_what_waits_for_the_device_knows_of_every_verdict_before(bench: Bench) -> None:
    async def judge_copies() -> list[Verdict]:
        sources = [softmax(bench.language, before=f"/* {copy} */") for copy in range(3)]
        copies = (
            bench.evaluator.evaluate(bench.problem, bench.language, one, lambda stage: None, known, given.append)
            for one in sources
        )
        return list(await asyncio.gather(*copies))

    def known(code: str) -> Verdict | None:
        return next((verdict for verdict in given if verdict.build is not None and verdict.build.code == code), None)

    given: list[Verdict] = []
    verdicts = bench.run(judge_copies())
    assert isinstance(verdicts, list) and len(verdicts) == 3
    assert len(given) == 1, "only the first was run"


def test_a_kernel_cannot_end_as_if_the_machine_had_ended_it(bench: Bench) -> None:
    assert bench.judge(softmax(bench.language, outside="#include <csignal>\n", after="raise(SIGKILL);")).correct


def test_cancelling_ends_a_running_kernel_before_its_time_limit(bench: Bench) -> None:
    async def cancel() -> float:
        source = softmax(bench.language, after='for (;;) asm volatile("");')
        task = asyncio.create_task(
            bench.evaluator.evaluate(bench.problem, bench.language, source, lambda stage: stages.append(stage))
        )
        while "checking" not in stages:  # noqa: ASYNC110 - it is a callback that says so
            await asyncio.sleep(0.02)
        await asyncio.sleep(0.3)
        started = time.monotonic()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return time.monotonic() - started

    stages: list[str] = []
    took = bench.run(cancel())
    assert isinstance(took, float) and took < POLICY.sandbox.call_s - 0.3, "the limit ended it"
    assert bench.judge(softmax(bench.language)).correct


def test_a_kernel_whose_process_a_signal_stops_is_told_so(bench: Bench) -> None:
    verdict = bench.judge(softmax(bench.language, outside="#include <csignal>\n", after="raise(SIGSTOP);"))
    assert verdict.status == "error"
    assert "signal from outside the judge stopped the kernel (call)" in verdict.reason
    assert bench.judge(softmax(bench.language)).correct


def test_a_judge_that_dies_between_two_requests_is_missed_aloud(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    process = bench.evaluator._judges[0]._process
    assert process is not None
    process.kill()
    bench.run(process.wait())
    assert bench.judge(softmax(bench.language)).correct
    assert "was killed by SIGKILL between two requests; the engine is starting another judge" in caplog.text


@pytest.mark.serial
@pytest.mark.usefixtures("quiet_machine")
def test_a_kernel_and_its_copy_are_tied_in_runoffs(bench: Bench) -> None:
    """A 95% interval excludes equal times by chance in a few percent of runoffs, so one of three may do so."""
    tied = 0
    for number in range(3):
        copy = softmax(bench.language, outside=f"// copy {number}\n")
        standings = bench.runoff({"v1": softmax(bench.language), "v2": copy})
        assert {row.variant for row in standings} == {"v1", "v2"}
        tied += all(row.tied for row in standings)
    assert tied >= 2


def test_a_kernel_has_no_more_memory_in_a_runoff(bench: Bench) -> None:
    takes = "for (int i = 0; i < 64; i++) if (char* taken = (char*)malloc(64 << 20)) memset(taken, 1, 64 << 20);"
    greedy = softmax(bench.language, outside="#include <cstring>\n", after=takes)
    with pytest.raises(EvaluationError, match="exceeded its memory limit") as found:
        bench.runoff({"v1": softmax(bench.language), "v2": greedy})
    assert found.value.variant == "v2"


def test_a_kernel_that_is_wrong_in_a_runoff_is_named(bench: Bench) -> None:
    with pytest.raises(EvaluationError, match="is wrong") as found:
        bench.runoff({"v1": softmax(bench.language), "v2": softmax(bench.language, skipped=1)})
    assert found.value.variant == "v2"


_OTHER_CONTEXT = """
#include <cuda.h>
#include <dlfcn.h>
__global__ void spin(long long cycles) { long long start = clock64(); while (clock64() - start < cycles) {} }
template <class F> static F driver(const char* name) {
    static void* library = dlopen("libcuda.so.1", RTLD_NOW);
    return (F)dlsym(library, name);
}
// Work that nobody waits for: in a context of its own, begun when the call's own work is done.
static void leave_work_behind() {
    static CUcontext other = nullptr;
    if (!other) {
        driver<int (*)(CUcontext*, unsigned, int)>("cuCtxCreate_v2")(&other, 0, 0);
    } else {
        driver<int (*)(CUcontext)>("cuCtxPushCurrent_v2")(other);
    }
    spin<<<1, 1>>>(400000000);
    CUcontext popped;
    driver<int (*)(CUcontext*)>("cuCtxPopCurrent_v2")(&popped);
}
"""


def test_work_left_on_the_device_for_the_reference_is_found(bench: Bench, tmp_path: Path) -> None:
    if bench.language != "cu":
        pytest.skip("on a CPU the process stands still between its calls")
    # GPU contexts take turns of about 2 ms, so only a longer reference is slowed.
    busy = "big = torch.zeros(4096, 4096, device=x.device)\n        for _ in range(4):\n            big = big @ big"
    text = PROBLEM.replace("return torch.softmax(x, dim=1)", f"{busy}\n        return torch.softmax(x, dim=1)")
    bench.open(text, "busy", tmp_path)
    after = "cudaStreamSynchronize(stream); leave_work_behind();"
    verdict = bench.judge(softmax(bench.language, outside=_OTHER_CONTEXT, after=after))
    assert verdict.status == "cheating", (verdict.status, verdict.reason, verdict.reference, verdict.kernel)
    assert bench.judge(softmax(bench.language)).correct
    bench.open(PROBLEM, "softmax", tmp_path)


@pytest.mark.parametrize("way", ['#include "/etc/passwd"', 'asm(".incbin \\"/etc/passwd\\"");'])
def test_a_compiler_cannot_be_made_to_read_other_files(bench: Bench, way: str) -> None:
    verdict = bench.judge(softmax(bench.language, outside=way))
    assert verdict.status == "build_error", (verdict.status, verdict.reason)
    assert verdict.build is not None and "root:" not in verdict.build.log + verdict.reason


def test_a_model_of_many_weights_is_handed_to_its_kernel(bench: Bench, tmp_path: Path) -> None:
    """One message lists all their addresses, in every slot."""
    count = 250
    weights = (
        "def __init__(self):\n        super().__init__()\n        self.weights = torch.nn.ParameterList("
        f"torch.nn.Parameter(torch.randn(1)) for _ in range({count}))\n\n    def forward"
    )
    text = PROBLEM.replace("def forward", weights).replace("torch.softmax(x, dim=1)", "x * self.weights[-1]")
    text = text.replace(f"torch.randn({ROWS}, {COLUMNS})", "torch.randn(8, 100)")  # that leaves room for all slots
    bench.open(text, "many", tmp_path)
    pointers = "".join(f"const float* w{index}, " for index in range(count))
    if bench.language == "cu":
        source = f"""
        __global__ void scale(const float* x, const float* w, float* out) {{
            long long i = blockIdx.x * 256LL + threadIdx.x;
            if (i < x_numel) out[i] = x[i] * *w;
        }}
        extern "C" int launch(const float* x, {pointers}float* out, void*, cudaStream_t stream) {{
            scale<<<(x_numel + 255) / 256, 256, 0, stream>>>(x, w{count - 1}, out);
            return 0;
        }}"""
    else:
        source = f"""
        extern "C" int launch(const float* x, {pointers}float* out, void*) {{
            for (long long i = 0; i < x_numel; i++) out[i] = x[i] * *w{count - 1};
            return 0;
        }}"""

    verdict = bench.judge(source)

    assert verdict.correct, verdict.reason


def test_a_kernel_writes_rows_even_if_the_model_returns_a_permuted_view(bench: Bench, tmp_path: Path) -> None:
    """PyTorch's attention does that on a GPU: its result has the shape of the queries, but other strides."""
    text = PROBLEM.replace("torch.softmax(x, dim=1)", "torch.softmax(x, dim=1).t().contiguous().t()")
    bench.open(text, "permuted", tmp_path)

    verdict = bench.judge(softmax(bench.language))

    assert verdict.correct, verdict.reason
