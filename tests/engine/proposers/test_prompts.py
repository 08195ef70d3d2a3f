"""The prompts for each language, and the user's own templates."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec import structs

from engine.config.schema import parse_config
from engine.devices.fact import DeviceFact
from engine.evaluation.build.instruction_counts import SASS_KINDS
from engine.problem.spec import MODULES, GraphNode, Language, ProblemSpec, TensorSpec
from engine.proposers.llm.facts import TRIED, device_lines, score
from engine.proposers.llm.profile import TELLING, bottleneck, profile_lines
from engine.proposers.llm.prompting import Prompts, TemplateProblem
from engine.proposers.llm.trimming import build_log, failure
from engine.proposers.protocol import Board, Demands, ExampleKernel, IdeaDraft, Kernel, Task, TriedIdea
from engine.search.context import demands_of
from engine.session.records.counters import DRAM, MEMORY, SM, STALLS, TIME, KernelCounters, bottleneck_of
from engine.session.records.model_calls import CallSite, call_name
from engine.session.records.verdict import BuildReport, Launch, Timing, Verdict
from engine.session.worked_ideas import WorkedIdea

SPEC = ProblemSpec(
    id="rows",
    name="rows",
    path="rows.py",
    source="class Model(torch.nn.Module): ...",
    tensors=(TensorSpec("x", "input", "float32", (64, 100)), TensorSpec("out", "output", "float32", (64, 100))),
    sol_bytes=51_200_000,
    flops=12_000_000,
)
H200 = DeviceFact("gpu", "cuda", "NVIDIA H200", "sm_90a", 141 << 30, 132, 4300.0, 700_000.0)
CPU = DeviceFact("cpu", "cpu", "Some Processor", "x86_64", 16 << 30, 4, 20.0, 100.0)


def task(language: Language = "cu", languages: tuple[Language, ...] = ()) -> Task:
    header = "" if language in MODULES else 'extern "C" int launch(const float* x, float* out);'
    device, sol_ms = (CPU, 2.048) if language == "cpp" else (H200, 0.012)
    return Task(SPEC, header, language, device, sol_ms, 0.5, 0.3, Demands(threads=4), languages)


def kernel(name: str, ms: float, idea: str = "", spills: int = 0) -> Kernel:
    counts = {"instructions": 420, "global loads of 128 bits": 8, "special functions (exp, log, rsqrt)": 16}
    build = BuildReport(True, 1.0, registers=64, spill_bytes=spills, shared_bytes=2048, instructions=counts)
    verdict = Verdict(
        status="correct", speedup=0.5 / ms, kernel=Timing(ms, ms, ms, 10), sol_share=0.012 / ms, build=build
    )
    text = idea or f"the idea of {name}"
    return Kernel(name, f"// source of {name}\n", "cu", verdict, "m", {}, text, over_compile=0.3 / ms)


BOARD = Board(
    round=2,
    tried=(
        TriedIdea("i1", None, "first", "Plain loops.", 0.8),
        TriedIdea("i2", "v1", "memory", "Stage rows in shared memory.", None, {}, 0.8, "wrong: off by 3"),
    ),
    kernels=(kernel("v1", 0.6), kernel("v2", 0.2), kernel("v3", 0.25), kernel("v4", 0.22, "the idea of v2")),
    examples=(ExampleKernel("gelu", "v9", "cu", "// source of v9\n", 3.0, "Four values a thread."),),
    lineage=("v1",),
    worked=(WorkedIdea("gelu", "", "cu", "Four values a thread.", {}, 3.0, None, frozenset()),),
)


@pytest.mark.parametrize(
    ("language", "words"),
    [
        ("cu", ["CUDA C++17", "sm_90a", "227 KiB", "copy bandwidth: 4,300 GB/s", "stream", "cold L2"]),
        ("cpp", ["C++20", "-march=native", "4 threads", "OpenMP", "copy bandwidth: 25 GB/s (at this"]),
        ("py", ["class ModelNew", "Do not use `try`"]),
        ("triton", ["class ModelNew", "@triton.jit", "TF32 exceeds the tolerance", "```python"]),
    ],
)
def test_every_language_has_its_rules_and_the_device(language: Language, words: list[str]) -> None:
    prompt = Prompts().kernel(
        task(language), IdeaDraft("memory", "Do it well.", {"bottleneck": "loads"}), None, Board(), 0
    )
    assert [word for word in words if word not in prompt.user] == []
    assert "Do it well." in prompt.user and "Bottleneck: loads" in prompt.user
    assert SPEC.source in prompt.user
    assert ("extern" in prompt.user) == (language not in MODULES)


@pytest.mark.parametrize(
    ("language", "demands", "said"),
    [
        ("cu", Demands(1e-4), ("<= 0.0001 * (rms", "tf32 operands", "`tanh.approx`")),
        ("cpp", Demands(1e-4), ("<= 0.0001 * (rms", "tf32 operands", "near 1e-6 are within it")),
        ("cu", Demands(1e-2), ("<= 0.01 * (rms", "Lower precision within that tolerance is allowed")),
        ("cu", Demands(1e-4, exact=True), ("<= 0.0001 * (rms", "as exact as fp32")),
    ],
    ids=["kernelbench", "kernelbench, C++", "crfm", "fp32 asked for"],
)
def test_the_tolerance_is_told_with_the_arithmetic_that_it_rules_out(
    language: Language, demands: Demands, said: tuple[str, ...]
) -> None:
    text = Prompts().ideas(structs.replace(task(language), demands=demands), None, Board(), 1).user
    (checks,) = (part for part in text.split("\n\n") if "A kernel is correct if" in part)
    assert [words for words in said if words not in checks] == []
    assert ("Lower precision" in checks) == (demands.tolerance > 1e-3)


@pytest.mark.parametrize(
    ("outputs", "tolerance", "told"),
    [
        (("float32",), "kernelbench", 1e-4),
        (("float16",), "kernelbench", 1e-2),
        (("float16", "float32"), "kernelbench", 1e-4),
        (("float32", "int64"), "kernelbench", 1e-4),
        (("int64",), "kernelbench", 1e-4),
        (("float32",), "crfm", 1e-2),
        (("float16", "float32"), 0.001, 1e-3),
    ],
)
def test_of_several_outputs_the_tightest_tolerance_is_told(
    outputs: tuple[str, ...], tolerance: str | float, told: float
) -> None:
    config = parse_config('problems = ["rows.py"]\n', "config.toml")
    evaluation = config.evaluation.model_copy(update={"tolerance": tolerance})
    tensors = tuple(TensorSpec(f"out{n}", "output", dtype, (64, 100)) for n, dtype in enumerate(outputs))
    spec = structs.replace(SPEC, tensors=(SPEC.tensors[0], *tensors))
    assert demands_of(evaluation, spec).tolerance == told


@pytest.mark.parametrize(("count", "words"), [(1, "Propose 1 way to write"), (2, "Propose 2 different ways to write")])
def test_first_ideas_are_asked_for_where_there_is_no_kernel(count: int, words: str) -> None:
    text = Prompts().ideas(task(), None, Board(), count).user
    assert words in text and "There is no kernel yet" in text
    assert ("differ in kind" in text) == (count > 1)


def test_ideas_are_asked_for_with_several_good_kernels_and_what_was_tried() -> None:
    parent = BOARD.kernels[0]
    prompt = Prompts().ideas(task(), parent, BOARD, 3)
    assert prompt.schema is not None
    text = prompt.user
    assert "Propose 3 optimization ideas for v1" in text
    assert "0.6 ms, 0.83x over eager, 0.50x over torch.compile, 2% SOL" in text
    assert "- 64 registers per thread, 0 bytes spilled, 2048 bytes of static shared memory" in text
    assert "420 instructions, including 16 special functions (exp, log, rsqrt), 8 global loads of 128 bits" in text
    assert "bottleneck: latency or extra work. The kernel reaches only 2% of the copy bandwidth" in text
    assert text.index("- v2:") < text.index("- v3:"), "the fastest first"
    assert "- v2: 0.2 ms, 2.50x over eager, 1.50x over torch.compile, 6% SOL. Its idea" in text, "no bandwidth"
    assert "- v4:" not in text, "one kernel an idea"
    assert "// source of v1" in text and "// source of v2" in text and "// source of v3" not in text
    assert "(memory access) Stage rows in shared memory. -> wrong: off by 3" in text
    assert "gelu, 3.00x over eager: Four values a thread." in text


def test_the_history_stays_short_and_keeps_what_bears_on_the_kernel() -> None:
    tried = tuple(
        TriedIdea(f"i{n}", "v8" if n % 5 else "v1", "compute", f"Idea {n}.", 1.0 + n / 100) for n in range(200)
    )
    text = Prompts().ideas(task(), BOARD.kernels[0], Board(tried=tried, lineage=("v1",)), 2).user
    assert "\n- and 184 more\n" in text
    shown = [n for n in range(200) if f"Idea {n}. ->" in text]
    assert len(shown) <= TRIED
    assert {195, 190, 185} <= set(shown), "those on this kernel"
    assert 199 in shown, "the best of the others"


def test_variants_of_an_idea_are_asked_for_differently_and_the_same_again_for_the_same_number() -> None:
    idea = IdeaDraft("memory", "Do it well.")
    prompts = [Prompts().kernel(task(), idea, BOARD.kernels[0], BOARD, number).user for number in range(4)]
    assert len(set(prompts)) == 4
    assert Prompts().kernel(task(), idea, BOARD.kernels[0], BOARD, 2).user == prompts[2]


def test_the_variants_that_an_idea_proposes_come_first() -> None:
    idea = IdeaDraft("memory", "Do it well.", {"variants": ["Tiles of 64 rows.", "Tiles of 128 rows."]})
    prompts = [Prompts().kernel(task(), idea, None, Board(), number).user for number in range(3)]
    assert "Write this variant of the idea: Tiles of 64 rows." in prompts[0]
    assert "Tiles of 128 rows." in prompts[1] and "Tiles of" not in prompts[2]


def test_a_runoff_overrules_the_speedups_of_separate_verdicts() -> None:
    kernels = tuple(
        structs.replace(kernel(name, ms), runoff_ratio=ratio)
        for name, ms, ratio in (("v1", 0.3, 1.0), ("v2", 0.2, 1.7), ("v3", 0.31, 1.02), ("v4", 0.4, None))
    )
    tried = (TriedIdea("i2", None, "first", "the idea of v2", 2.5),)
    board = Board(kernels=kernels, tried=tried)
    best = Prompts().ideas(task(), kernels[0], board, 1).user
    assert best.index("- v3:") < best.index("- v4:") < best.index("- v2:")
    assert "fastest in the runoff" in best and "1.02x the fastest time in the runoff" in best
    assert "The time to beat is that of v1." in best and "Keep the algorithm" in best
    assert "-> 2.50x over eager, 1.70x the time of v1" in best
    assert "// source of v2" not in best and "// source of v3" not in best, "no kernel is clearly faster"
    behind = Prompts().ideas(task(), kernels[1], board, 1).user
    assert "v1 is improved at the same time" in behind and "// source of v1" in behind
    asked = Prompts().kernel(task(), IdeaDraft("memory", "Do it."), kernels[1], board, 1).user
    assert "Keep the strengths of v2" in asked and "Beat v1 (0.3 ms)." in asked


def test_only_the_winner_is_the_fastest_in_the_runoff() -> None:
    def said(ratio: float) -> str:
        return score(task(), structs.replace(kernel("v1", 0.3), runoff_ratio=ratio))

    assert said(1.0).endswith("fastest in the runoff") and said(1.003).endswith("1.00x the fastest time in the runoff")


def test_negligible_arithmetic_is_not_shown() -> None:
    few = structs.replace(task(), problem=structs.replace(SPEC, flops=1_000))
    assert "GFLOP/s" in score(task(), kernel("v1", 0.3)) and "GFLOP/s" not in score(few, kernel("v1", 0.3))


def test_a_profile_always_counts_telling_instructions() -> None:
    counts = {"instructions": 9_000, "bulk copies (TMA)": 4, "tensor core operations": 16, "warp shuffles": 3}
    counts |= {"fp32 operations": 900, "global loads of 32 bits": 80, "barriers": 70, "atomic operations": 60}
    build = BuildReport(True, 1.0, registers=64, instructions=counts)
    one = kernel("v1", 0.3)
    one = structs.replace(one, verdict=structs.replace(one.verdict, build=build))
    (whole,) = [line for line in profile_lines(task(), one) if line.startswith("machine code")]
    (brief,) = [line for line in profile_lines(task(), one, brief=True) if line.startswith("machine code")]
    assert "4 bulk copies (TMA)" in brief and "16 tensor core operations" in brief
    assert (
        "60 atomic operations" in whole and "900 fp32" in whole and "fp32" not in brief and "warp shuffles" not in whole
    )
    assert {kind for kind, _ in SASS_KINDS} >= TELLING


def test_a_peak_that_a_kernel_exceeds_is_no_bound() -> None:
    exceeded = bottleneck(task("cpp"), 1.0)
    assert "probably memory. The kernel reaches 205% of the copy bandwidth" in exceeded and "not a bound" in exceeded
    assert "memory. The kernel reaches 80% of the copy bandwidth" in (near := bottleneck(task("cpp"), 2.56))
    assert "at most 1.25x faster" in near


def test_a_lower_bound_above_eagers_time_is_not_shown() -> None:
    slow = structs.replace(task("cpp"), sol_ms=0.6)
    assert "lower bound" in Prompts().ideas(task("cu"), None, Board(), 1).user
    text = Prompts().ideas(slow, None, Board(), 1).user
    assert "0.6 ms" not in text and "The measured peaks are too low" in text


def test_the_other_kernels_of_the_parents_idea_are_named_with_what_they_changed() -> None:
    parent, slower = (
        structs.replace(kernel(name, ms, "Tile it."), data={"number": number})
        for number, (name, ms) in enumerate((("v1", 0.2), ("v2", 0.3)))
    )
    wrong = structs.replace(failing("v3", "x", "off by one", "Tile it."), data={"number": 7})
    tried = (TriedIdea("i1", None, "first", "Tile it.", 2.5, {"variants": ["Tiles of 64.", "Tiles of 128."]}),)
    text = Prompts().ideas(task(), parent, Board(kernels=(parent, slower, wrong), tried=tried), 1).user
    assert "- v2 (Tiles of 128.): 0.3 ms, 1.50x the time of v1" in text and "- v3: wrong: off by one" in text


def test_the_first_kernel_of_an_idea_edits_its_parent() -> None:
    first, second = (
        Prompts().kernel(task(), IdeaDraft("memory", "Do it."), BOARD.kernels[1], BOARD, number).user
        for number in range(2)
    )
    assert "Edit v2: copy every line that the idea leaves alone." in first and "Edit v2" not in second


LOG = """\
kernel.cu: In function 'int launch()':
kernel.cu(7): warning: variable "y" was declared but never referenced
kernel.cu(10): error: identifier "foo" is undefined
      foo();
      ^
kernel.cu(12): error: identifier "foo" is undefined
      foo();
      ^
ptxas info    : 0 bytes gmem
kernel.cu(20): error: expected a ";"
  }
  ^

2 errors detected in the compilation of "kernel.cu".
"""


def test_a_repair_gets_the_first_errors_and_no_more() -> None:
    text = build_log(LOG)
    assert text.count("error:") == 2
    assert 'expected a ";"' in text and "warning" not in text and "ptxas" not in text
    assert len(build_log(LOG * 1000)) < 4_000
    failed = Kernel("v5", "int launch", "cu", Verdict(status="build_error", build=BuildReport(False, 1, log=LOG)), "m")
    prompt = Prompts().fix(task(), IdeaDraft("memory", "Do it."), failed, Board(), "", 1).user
    assert text in prompt and "int launch" in prompt


def test_a_repair_of_a_wrong_kernel_gets_the_judges_sentence() -> None:
    verdict = Verdict(status="wrong", reason="out: 3 elements are off", max_abs_error=0.5, max_rel_error=0.25)
    assert failure(verdict) == ("wrong: out: 3 elements are off\nlargest error: 0.5 absolute, 0.25 relative")


def failing(name: str, source: str, reason: str, idea: str = "Do it.") -> Kernel:
    return Kernel(name, source, "cu", Verdict(status="wrong", reason=reason), "m", {}, idea)


def test_a_repair_sees_its_parent_earlier_repairs_and_the_errors_of_siblings() -> None:
    parent = structs.replace(kernel("v1", 0.2), source="// one\nint tile = 4;\n// end\n")
    first = failing("v5", "// one\nint tile = 8;\n// end\n", "the first error")
    second = failing("v6", "// one\nint tile = 16;\n// end\n", "the second error")
    sibling, stranger = failing("v7", "x", "the sibling's error"), failing("v8", "y", "a stranger's error", "Another.")
    board = Board(kernels=(parent, first, second, sibling, stranger), lineage=("v6", "v5", "v1"))
    text = Prompts().fix(task(), IdeaDraft("memory", "Do it."), second, board, "", 2).user
    assert "-int tile = 4;\n+int tile = 16;" in text and "made from v1, which is correct (0.2 ms" in text
    assert "- v5: wrong: the first error" in text and "- v7: wrong: the sibling's error" in text
    assert text.count("the second error") == 1 and "stranger" not in text


def test_a_kernel_is_asked_for_with_the_errors_of_its_siblings() -> None:
    board = Board(kernels=(failing("v7", "x", "off by one\nin row 3"), kernel("v1", 0.2)))
    text = Prompts().kernel(task(), IdeaDraft("memory", "Do it."), None, board, 1).user
    assert "Other kernels for this idea failed. Avoid these errors:" in text
    assert "- v7: wrong: off by one; in row 3" in text


@pytest.mark.parametrize(
    ("ms", "flops", "words"),
    [
        (0.015, 12_000_000, "memory. The kernel reaches 80% of the copy bandwidth"),
        (
            1.5,
            700_000_000_000,
            "arithmetic. The kernel reaches 1% of the copy bandwidth and 67% of the measured arithmetic rate",
        ),
        (0.12, 12_000_000, "latency or extra work. The kernel reaches only 10% of the copy bandwidth"),
        (0.004, 12_000_000, "launches. The kernel takes 4.0 us"),
    ],
)
def test_the_bottleneck_is_named_with_its_figures(ms: float, flops: int, words: str) -> None:
    spec = structs.replace(SPEC, flops=flops)
    sol_ms = max(0.012, flops / 700_000 / 1e6)
    assert bottleneck(structs.replace(task(), problem=spec, sol_ms=sol_ms), ms).startswith(words)


def test_the_device_is_described_with_what_it_can() -> None:
    gpu = structs.replace(H200, clock_mhz=1980)
    cpu = structs.replace(CPU, features=("avx2", "fma"), caches=("L1 32 KiB per core", "L3 32 MiB"))
    assert (
        device_lines(structs.replace(task(), device=gpu))[0]
        == "NVIDIA H200, sm_90a, 132 SMs at up to 1,980 MHz, 141 GiB"
    )
    lines = device_lines(structs.replace(task("cpp"), device=cpu))
    peak = "peak per core: 32 fp32 FLOP per cycle"
    assert f"vector extensions: avx2, fma; {peak}" in lines and "data caches: L1 32 KiB per core, L3 32 MiB" in lines
    newer = structs.replace(cpu, features=("sse4_2", "avx", "avx2", "fma", "f16c", "avx512f", "avx512vl"))
    (said,) = [line for line in device_lines(structs.replace(task("cpp"), device=newer)) if "extensions" in line]
    assert said.startswith("vector extensions: avx512f, avx512vl; peak per core: 64 fp32 FLOP per cycle")


def test_the_occupancy_is_that_of_the_launch_in_the_source() -> None:
    source = "__global__ void run() {}\nint launch() { run<<<132, 512>>>(); }\n"
    lines = profile_lines(task(), structs.replace(kernel("v1", 0.2), source=source))
    assert "occupancy 50%: 2 blocks of 512 threads per SM, limited by registers" in lines


def test_a_template_of_ones_own_is_used_and_its_faults_are_named(tmp_path: Path) -> None:
    (tmp_path / "kernel.md.j2").write_text("Only this: {{ idea.text }}")
    prompts = Prompts((tmp_path,))
    assert prompts.kernel(task(), IdeaDraft("memory", "Do it."), None, Board(), 0).user == "Only this: Do it.\n"
    assert "Propose" in prompts.ideas(task(), None, Board(), 1).user
    prompts.check()
    (tmp_path / "fix.md.j2").write_text("one\n{% if %}")
    with pytest.raises(TemplateProblem, match=r"fix\.md\.j2:2: "):
        Prompts((tmp_path,)).check()
    (tmp_path / "ideas.md.j2").write_text("{{ idae }}")
    with pytest.raises(TemplateProblem, match="'idae' is undefined"):
        Prompts((tmp_path,)).ideas(task(), None, Board(), 1)


def test_a_template_of_an_earlier_version_finds_the_language_by_its_old_name(tmp_path: Path) -> None:
    (tmp_path / "_problem.md.j2").write_text("{% if form == suffix %}Write a .{{ form }} file.{% endif %}")
    assert "Write a .cu file." in Prompts((tmp_path,)).ideas(task("cu"), None, Board(), 1).user


def test_a_calls_name_is_a_file_name() -> None:
    assert call_name(CallSite("softmax", 0, "ideas", "", 1)) == "softmax.r0.ideas.start.1"
    assert call_name(CallSite("softmax", 3, "kernel", "i7", 0)) == "softmax.r3.kernel.i7.0"


LAUNCH = Launch("rows", (264, 1, 1), (256, 1, 1), 64, 1024, 65536, 0, 3)
MEMORY_BOUND = {DRAM: 91.0, MEMORY: 92.0, SM: 20.0, TIME: 4e4, next(iter(STALLS)): 12.5}


def test_a_recorded_launch_shows_its_dynamic_shared_memory_and_its_waves() -> None:
    shown = kernel("v1", 0.2)
    shown = structs.replace(shown, verdict=structs.replace(shown.verdict, launches=(LAUNCH, LAUNCH)))
    lines = profile_lines(task(), shown)
    (line,) = [line for line in lines if line.startswith("launches rows 2 times")]
    assert "264 blocks of 256 threads, 64 registers" in line
    assert "1,024 bytes static + 65,536 bytes dynamic shared memory" in line
    assert "occupancy 38% (3 blocks per SM, limited by shared memory), 0.667 waves" in line
    assert not any("static shared memory, and dynamic" in line for line in lines)


@pytest.mark.parametrize(
    ("metrics", "found"),
    [
        (MEMORY_BOUND, "memory"),
        ({**MEMORY_BOUND, DRAM: 10.0, MEMORY: 30.0, SM: 88.0}, "compute"),
        ({**MEMORY_BOUND, DRAM: 3.0, MEMORY: 12.0, SM: 7.0}, "latency"),
    ],
)
def test_measured_counters_replace_the_estimated_bottleneck(metrics: dict[str, float], found: str) -> None:
    short = KernelCounters("fill", {DRAM: 1.0, MEMORY: 1.0, SM: 99.0, TIME: 10.0})
    counters = (short, KernelCounters("rows", metrics))
    assert bottleneck_of(counters) == found
    lines = profile_lines(task(), structs.replace(kernel("v1", 0.2), counters=counters))
    (line,) = [line for line in lines if line.startswith("bottleneck")]
    assert "by hardware counters" in line and f"DRAM {metrics[DRAM]:.0f}%" in line
    assert "stalls on global memory (12.5 warps per issue)" in line and "100% of the time in rows" in line


def test_with_two_languages_ideas_name_one_and_see_the_rules_of_both() -> None:
    both = task(languages=("cu", "triton"))
    asked = Prompts().ideas(both, None, Board(), 2)
    assert "Rules for a CUDA C++ kernel" in asked.user and "Rules for a Triton kernel" in asked.user
    assert "names the language of its kernel: `cuda` or `triton`" in asked.user
    assert asked.schema is not None
    item = asked.schema["properties"]["ideas"]["items"]
    assert item["properties"]["language"]["enum"] == ["cuda", "triton"]
    port = Prompts().kernel(both, IdeaDraft("memory", "Port it.", {"language": "triton"}), kernel("v1", 0.2), BOARD, 0)
    assert "v1 is in CUDA C++. Write yours in Triton." in port.user
    assert "Rules for" not in port.user and "```cuda\n// source of v1" in port.user
    alone = Prompts().ideas(task(), None, Board(), 2)
    assert "names the language" not in alone.user and "Rules for" not in alone.user


def worked(problem: str, text: str, speedup: float, *operators: str, session: str = "") -> WorkedIdea:
    return WorkedIdea(problem, session, "cu", text, {}, speedup, 1.0, frozenset(operators))


def test_ideas_that_worked_on_similar_problems_are_offered_once_per_method() -> None:
    graph = (GraphNode("a", "call", "aten._softmax.default"), GraphNode("b", "call", "aten.mul.Tensor"))
    spec = structs.replace(SPEC, graph=graph)
    found = (
        worked("matmul", "Use the tensor cores with wmma.", 5.0, "aten.mm.default"),
        worked("rows2", "Read each row once: online softmax.", 1.8, "aten._softmax.default"),
        worked("scaled", "Keep the row in registers.", 1.3, "aten._softmax.default", "aten.mul.Tensor", session="old"),
        worked("scaled", "Stage rows in smem.", 1.5, "aten._softmax.default", "aten.mul.Tensor"),
        worked("rows3", "One pass with a running max.", 1.2, "aten._softmax.default"),
    )
    board = structs.replace(BOARD, worked=found)
    text = Prompts().ideas(structs.replace(task(), problem=spec), BOARD.kernels[0], board, 2).user
    section = text.split("## Ideas that worked for similar problems")[1].split("##")[0].strip().splitlines()
    assert section == [
        "- scaled in session old, 1.00x to 1.30x over eager: Keep the row in registers.",
        "- rows2, 1.00x to 1.80x over eager: Read each row once: online softmax.",
    ], "BOARD's search has tried shared memory; a running max is one pass too; matrix products share no operator"


def test_a_second_source_is_shown_as_a_diff_if_that_is_shorter() -> None:
    lines = [f"    x{number} += y{number};" for number in range(60)]
    slow, fast = kernel("v1", 0.6), kernel("v2", 0.2)
    slow = structs.replace(slow, source="\n".join(lines))
    fast = structs.replace(fast, source="\n".join([*lines[:30], "    // unrolled", *lines[30:]]))
    text = Prompts().ideas(task(), slow, Board(kernels=(slow, fast)), 2).user
    assert "v2 differs from v1 as follows:" in text and "+    // unrolled" in text
    assert text.count("x59 += y59") == 1
