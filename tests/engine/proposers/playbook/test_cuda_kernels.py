"""The CUDA templates: their output, its compilation for sm_80 and sm_90a, and its results on a GPU."""

from __future__ import annotations

import ctypes
import math
import re
import shutil
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch

from engine.devices.fact import DeviceFact
from engine.problem.spec import ProblemSpec
from engine.proposers.playbook.analysis.analyze import analyze
from engine.proposers.playbook.base import Choices, Recipe, Template
from engine.proposers.playbook.ir.program import RowProgram
from engine.proposers.playbook.patterns.pointwise.cuda import CudaPointwise
from engine.proposers.playbook.patterns.rows.cuda import CudaRows
from engine.proposers.playbook.patterns.rows.cuda_plan import resolve
from tests.engine.proposers.playbook.cpp_harness import Problem, make_problem
from tests.engine.proposers.playbook.cuda_harness import A100, H200, compile_cuda, machine_code

Shapes = dict[str, tuple[int, ...]]
PROBLEMS: dict[str, tuple[str, Shapes, str]] = {
    "softmax": ("return torch.softmax(x, 1)", {"x": (37, 5004)}, ""),
    "softmax_odd": ("return torch.softmax(x, 1)", {"x": (5, 33)}, ""),
    "softmax_long": ("return torch.softmax(x, 1)", {"x": (4096, 65536)}, ""),
    "log_softmax": ("return torch.log_softmax(x, 1)", {"x": (9, 2050)}, ""),
    "layernorm": ("return self.ln(1000 + x)", {"x": (3, 20, 1002)}, "self.ln = nn.LayerNorm((20, 1002))"),
    "layernorm_huge": ("return self.ln(x)", {"x": (16, 64, 256, 256)}, "self.ln = nn.LayerNorm((64, 256, 256))"),
    "add_ln": ("return F.gelu(self.ln(x + y))", dict.fromkeys("xy", (4, 40004)), "self.ln = nn.LayerNorm(40004)"),
    "logsumexp": ("return torch.logsumexp(x, 1)", {"x": (50, 1000)}, ""),
    "several": ("return x - x.amax(1, keepdim=True), x.sum(1), x.amin(1)", {"x": (31, 2052)}, ""),
    "gelu": ("return F.gelu(x, approximate='tanh')", {"x": (1003,)}, ""),
    "bias": ("return torch.sigmoid(x + self.b)", {"x": (4, 6, 10, 10)}, "self.b = nn.Parameter(torch.randn(6, 1, 1))"),
}  # fmt: skip
WIDE: Choices = {"width": 4, "fused": True, "merge": "shuffle", "math": "fast", "read": "stream", "store": "stream"}
STRUCTURES: dict[str, Choices] = {
    "plain": {},
    "loop": {**WIDE, "unroll": 4},
    "warp": {**WIDE, "structure": "registers", "cluster": 0},
    "registers": {**WIDE, "structure": "registers", "threads": 512},
    "split": {**WIDE, "structure": "split", "unroll": 2, "rows_per_block": 3, "span_kb": 16},
    "cluster": {**WIDE, "structure": "registers", "cluster": 4, "threads": 128},
    "ring": {**WIDE, "structure": "ring", "cluster": 2, "slot_kb": 2},
    "grid_ring": {**WIDE, "structure": "ring", "cluster": 0, "slot_kb": 4, "keep": 1},
    "ring_writers": {**WIDE, "structure": "ring", "cluster": 2, "slot_kb": 2, "threads": 64, "writers": 96},
    "grid_ring_writers": {**WIDE, "structure": "ring", "cluster": 0, "slot_kb": 4, "keep": 1, "writers": 256},
    "block": {**WIDE, "structure": "block", "threads": 128, "unroll": 2, "keep": 1},
    "halves": {**WIDE, "structure": "halves", "threads": 256, "per": 4},
    "halves_long": {**WIDE, "structure": "halves", "threads": 512, "per": 4, "slots": 2},
    "halves_pieces": {**WIDE, "structure": "halves", "threads": 128, "per": 4, "sms": 5},
}
COMPILED = [
    ("softmax_odd", "plain", A100),
    ("add_ln", "loop", A100),
    ("several", "warp", A100),
    ("layernorm", "registers", A100),
    ("layernorm", "split", A100),
    ("gelu", "plain", A100),
    ("softmax", "cluster", H200),
    ("softmax_long", "ring", H200),
    ("layernorm_huge", "grid_ring", H200),
    ("softmax_long", "ring_writers", H200),
    ("layernorm_huge", "grid_ring_writers", H200),
    ("softmax_long", "block", H200),
    ("add_ln", "block", H200),
    ("layernorm_huge", "halves_long", H200),
    ("layernorm", "halves_pieces", H200),
    ("bias", "loop", H200),
]


@cache
def problem(name: str) -> Problem:
    forward, shapes, init = PROBLEMS[name]
    small = name not in ("softmax_long", "layernorm_huge")
    with TemporaryDirectory() as folder:
        if small:
            return make_problem(Path(folder), forward, shapes, init)
        return Problem(_spec_only(Path(folder), forward, shapes, init), [], [], torch.nn.Module())


def _spec_only(folder: Path, forward: str, shapes: Shapes, init: str) -> ProblemSpec:
    """Return a problem that is too large to run here. It is inspected, but not built."""
    from engine.problem.inspection import inspect_file

    shape = next(iter(shapes.values()))
    (folder / "big.py").write_text(
        "import torch\nfrom torch import nn\nclass Model(nn.Module):\n    def __init__(self):\n"
        f"        super().__init__()\n        {init or 'pass'}\n    def forward(self, x):\n        {forward}\n"
        f"def get_inputs():\n    return [torch.randn({shape!r})]\ndef get_init_inputs():\n    return []\n"
    )
    return inspect_file(folder / "big.py", "big")


def source_of(name: str, structure: str, device: DeviceFact) -> str:
    spec = problem(name).spec
    program = analyze(spec)
    template: Template = CudaRows() if isinstance(program, RowProgram) else CudaPointwise()
    plain = template.starts(program, spec, device)[-1].recipe
    known = {key: value for key, value in STRUCTURES[structure].items() if key in plain.choices}
    return template.emit(program, Recipe(template.name, {**plain.choices, **known}), spec)


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not installed")
@pytest.mark.parametrize("device", [A100, H200], ids=lambda device: device.arch)
def test_nvcc_takes_every_structure(tmp_path: Path, device: DeviceFact) -> None:
    kernels = [
        (f"{name} {structure}", problem(name).spec, source_of(name, structure, device))
        for name, structure, where in COMPILED
        if where == device
    ]
    code = machine_code(tmp_path, kernels, device.arch).read_bytes()
    assert all(f"kernel_{number}".encode() in code for number in range(len(kernels)))


def test_writers_get_no_more_registers_than_the_block_has() -> None:
    """A setmaxnreg beyond them hangs the block, and one that lowers a count below zero steps is illegal."""
    found = set()
    for threads in (128, 256, 384, 512, 768, 992):
        for writers in (256, 384, 512, 640):
            spec = problem("layernorm_huge").spec
            starts = {start.name: start.recipe for start in CudaRows().starts(analyze(spec), spec, H200)}
            recipe = starts["best_known"]
            choices: Choices = {"threads": threads, "writers": writers}
            source = CudaRows().emit(analyze(spec), recipe.with_(choices), spec)
            folding, writing = (
                int(re.findall(rf"constexpr int {name} = (\d+);", source)[0]) for name in ("threads", "writers")
            )
            assert folding + writing + 32 <= 1024
            wanted = re.findall(r"fold_registers = least\((\d+)", source)
            if not wanted:
                continue
            block = folding + writing + 128
            launch = 65536 // block // 8 * 8
            fold = min(int(wanted[0]), launch)
            given = min((launch * block - 128 * 24 - folding * fold) // writing // 8 * 8, 240)
            assert launch <= given and 128 * 24 + folding * fold + writing * given <= launch * block
            found.add((folding, writing))
    assert {(128, 256), (128, 640), (512, 384)} <= found


@pytest.mark.parametrize("name", PROBLEMS)
def test_equal_choices_give_equal_sources(name: str) -> None:
    for structure in STRUCTURES:
        source = source_of(name, structure, H200)
        assert source == source_of(name, structure, H200)
        assert source.count('extern "C" int launch(') == 1


def test_structures_for_hopper_become_plainer_ones_on_older_devices() -> None:
    for structure in ("cluster", "ring", "grid_ring", "ring_writers", "grid_ring_writers"):
        source = source_of("softmax", structure, A100)
        assert "cluster_dims" not in source and "cp.async.bulk" not in source


@pytest.mark.parametrize(
    ("name", "wanted"), [("softmax_long", "block"), ("layernorm_huge", "split"), ("softmax", "registers")]
)
def test_the_largest_expected_gains_lead_to_a_good_structure_in_three_steps(name: str, wanted: str) -> None:
    spec = problem(name).spec
    program = analyze(spec)
    assert isinstance(program, RowProgram)
    template = CudaRows()
    recipe = template.starts(program, spec, H200)[-1].recipe
    reached = []
    for _ in range(3):
        transformation = template.transformations(program, recipe, H200)[0]
        recipe = recipe.with_(transformation.changes, transformation.opens)
        reached.append(resolve(program, recipe.choices).structure)
    assert reached[0] != wanted or wanted == "split"
    assert wanted in reached


@pytest.mark.parametrize(
    ("name", "device", "structure"),
    [
        ("softmax_long", H200, "block"),
        ("softmax_long", A100, "loop"),
        ("layernorm_huge", H200, "ring"),
        ("layernorm_huge", A100, "split"),
        ("layernorm", H200, "split"),
        ("softmax", H200, "registers"),
        ("logsumexp", A100, "registers"),
    ],
)
def test_round_0_begins_with_the_structure_that_was_fastest(name: str, device: DeviceFact, structure: str) -> None:
    spec = problem(name).spec
    program = analyze(spec)
    assert isinstance(program, RowProgram)
    exact = [start.recipe for start in CudaRows().starts(program, spec, device) if start.tolerance == 0]
    assert resolve(program, exact[0].choices).structure == structure


def test_rows_in_16_bits_name_the_tolerance_that_they_need_and_have_an_exact_fallback() -> None:
    spec = problem("layernorm_huge").spec
    program = analyze(spec)
    template = CudaRows()
    starts = {start.name: start for start in template.starts(program, spec, H200)}
    assert starts["16_bits"].tolerance > 1e-4 and starts["best_known"].tolerance == 0
    exact = template.safer(program, starts["16_bits"].recipe)
    assert exact is not None and "half2" not in template.emit(program, exact, spec)


@pytest.mark.parametrize("forward", ["torch.softmax(x, 1)", "1 / x - x.mean(1, keepdim=True)"])
def test_a_row_whose_rounding_would_grow_stays_in_fp32(tmp_path: Path, forward: str) -> None:
    """An error of 2^-11 of a deviation of 500 would change its exponential by a quarter."""
    spec = make_problem(tmp_path, f"return {forward}", {"x": (2, 20000)}, "").spec
    program = analyze(spec)
    assert isinstance(program, RowProgram)
    wide = CudaRows().starts(program, spec, H200)[-1].recipe.with_(STRUCTURES["halves"])
    assert resolve(program, wide.choices).structure != "halves"


@pytest.mark.parametrize("name", PROBLEMS)
def test_every_transformation_changes_the_source_or_opens_a_knob_that_exists(name: str) -> None:
    spec = problem(name).spec
    program = analyze(spec)
    template: Template = CudaRows() if isinstance(program, RowProgram) else CudaPointwise()
    recipe = template.starts(program, spec, H200)[-1].recipe
    for _ in range(4):
        for transformation in template.transformations(program, recipe, H200):
            changed = recipe.with_(transformation.changes, transformation.opens)
            assert template.emit(program, changed, spec) != template.emit(program, recipe, spec), transformation.name
            legal = template.knobs(program, changed, H200)
            for knob in transformation.opens:
                for value in legal.get(knob, ()):
                    assert template.emit(program, changed.with_({knob: value}), spec)
        best = template.transformations(program, recipe, H200)[0]
        recipe = recipe.with_(best.changes, best.opens)


def built_for_this_gpu(folder: Path, name: str, structure: str) -> ctypes.CDLL:
    major, minor = torch.cuda.get_device_capability()
    arch = f"sm_{major}{minor}" + ("a" if major >= 9 else "")
    sms = torch.cuda.get_device_properties(0).multi_processor_count
    device = DeviceFact("gpu", "cuda", torch.cuda.get_device_name(), arch, 0, sms)
    return ctypes.CDLL(str(compile_cuda(folder, problem(name).spec, source_of(name, structure, device), arch)))


def workspace_of(library: ctypes.CDLL) -> torch.Tensor:
    size = 0
    if hasattr(library, "workspace_bytes"):
        library.workspace_bytes.restype = ctypes.c_size_t
        size = library.workspace_bytes()
    return torch.full((max(size, 1),), 0xA5, dtype=torch.uint8, device="cuda")


@pytest.mark.gpu
@pytest.mark.parametrize("structure", ["halves_long", "grid_ring", "grid_ring_writers"])
def test_long_rows_give_equal_outputs_in_thousands_of_calls(tmp_path: Path, structure: str) -> None:
    # If a copy overtook a warp's loads, about one call in a thousand would have another row.
    library = built_for_this_gpu(tmp_path, "layernorm_huge", structure)
    shape = (16, 64, 256, 256)
    x, weight, bias = (torch.randn(one, device="cuda") for one in (shape, shape[1:], shape[1:]))
    out, workspace = torch.empty_like(x), workspace_of(library)
    pointers = [ctypes.c_void_p(t.data_ptr()) for t in (x, weight, bias, out, workspace)]
    stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
    assert library.launch(*pointers, stream) == 0
    expected = out.clone()
    assert torch.allclose(expected, torch.nn.functional.layer_norm(x, shape[1:], weight, bias), rtol=0.01, atol=0.01)
    for _ in range(5000):
        out.fill_(math.nan)
        assert library.launch(*pointers, stream) == 0
        assert torch.equal(out, expected)


@pytest.mark.gpu
@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("name", [n for n in PROBLEMS if n not in ("softmax_long", "layernorm_huge")])
def test_results_on_the_gpu(tmp_path: Path, name: str, structure: str) -> None:
    found = problem(name)
    library = built_for_this_gpu(tmp_path, name, structure)
    wanted: Any = found.model.double()(*(x.double() for x in found.inputs))
    found.model.float()
    wanted = list(wanted) if isinstance(wanted, tuple) else [wanted]
    given = [x.detach().float().cuda() for x in (*found.inputs, *found.weights)]
    outputs = [torch.full(w.shape, math.nan, device="cuda") for w in wanted]
    workspace = workspace_of(library)
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    pointers = [ctypes.c_void_p(t.data_ptr()) for t in (*given, *outputs, workspace)]
    assert library.launch(*pointers, ctypes.c_void_p(stream.cuda_stream)) == 0
    torch.cuda.synchronize()
    for out, want in zip(outputs, wanted, strict=True):
        limit = 1e-3 if structure.startswith("halves") else 2e-4 if name == "layernorm" else 2e-6
        assert float((out.cpu().double() - want).norm() / want.norm()) < limit
