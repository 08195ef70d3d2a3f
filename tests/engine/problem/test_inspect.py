"""Specifications are derived from problem files, small and huge."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import TreeSpec

from engine.problem.c_header import prototype
from engine.problem.inspection import Job, _input_names, _inspect_job, inspect_file
from engine.problem.source import ProblemFileError, ProblemModule
from engine.problem.spec import ProblemSpec, ScalarSpec
from engine.problem.tracing.operators import build_fake

HEAD = "import torch\nfrom torch import nn\nfrom torch.nn import functional as F\n"


def inspected(tmp_path: Path, body: str, inputs: str, init: str = "[]") -> ProblemSpec:
    """Return the specification of a file whose Model has ``body`` and functions return ``inputs`` and ``init``."""
    path = tmp_path / "case.py"
    model = "class Model(nn.Module):\n" + textwrap.indent(textwrap.dedent(body), "    ")
    functions = f"\ndef get_inputs():\n    return {inputs}\n\ndef get_init_inputs():\n    return {init}\n"
    path.write_text(HEAD + model + functions)
    return inspect_file(path, "case")


@pytest.fixture
def few_operators(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limit graphs to 500 nodes, because tracing thousands takes seconds."""
    monkeypatch.setattr("engine.problem.tracing.operators._MAX_OPERATORS", 500)


def targets(spec: ProblemSpec) -> list[str]:
    assert spec.graph is not None
    return [node.target for node in spec.graph if node.op == "call"]


def test_a_problem_of_a_terabyte_needs_no_memory(tmp_path: Path) -> None:
    spec = inspected(
        tmp_path, "def forward(self, x):\n    return torch.softmax(x, dim=1)", "[torch.rand(1_000_000, 500_000)]"
    )

    assert spec.c_refusal is None
    assert [(t.name, t.role, t.dtype, t.shape) for t in spec.tensors] == [
        ("x", "input", "float32", (1_000_000, 500_000)),
        ("out", "output", "float32", (1_000_000, 500_000)),
    ]
    assert spec.sol_bytes == 2 * 4 * 1_000_000 * 500_000
    assert targets(spec) == ["aten._softmax.default"]


def test_parameters_get_their_state_dict_names(tmp_path: Path) -> None:
    spec = inspected(
        tmp_path,
        """
        def __init__(self, features, eps):
            super().__init__()
            self.block = nn.Sequential(nn.Linear(features, 20), nn.LayerNorm(20, eps=eps))
        def forward(self, x):
            return self.block(x)
        """,
        "[torch.rand(7, 30)]",
        "[30, 1e-3]",
    )

    assert [(t.name, t.source_name) for t in spec.weights] == [
        ("block_0_weight", "block.0.weight"),
        ("block_0_bias", "block.0.bias"),
        ("block_1_weight", "block.1.weight"),
        ("block_1_bias", "block.1.bias"),
    ]
    assert spec.scalars == (ScalarSpec("features", "long long", 30), ScalarSpec("eps", "double", 1e-3))
    assert spec.flops is not None and spec.flops >= 2 * 7 * 30 * 20
    assert targets(spec) == ["aten.t.default", "aten.addmm.default", "aten.native_layer_norm.default"]


def test_batch_norm_in_training_mode_mutates_its_statistics(tmp_path: Path) -> None:
    spec = inspected(
        tmp_path,
        """
        def __init__(self):
            super().__init__()
            self.bn = nn.BatchNorm2d(5)
        def forward(self, x):
            return self.bn(x)
        """,
        "[torch.rand(2, 5, 9, 9)]",
    )

    assert spec.c_refusal is None
    mutated = {t.source_name for t in spec.weights if t.mutated}
    assert mutated == {"bn.running_mean", "bn.running_var", "bn.num_batches_tracked"}


def test_buffers_outside_the_state_dict_and_plain_tensors_reach_the_kernel(tmp_path: Path) -> None:
    spec = inspected(
        tmp_path,
        """
        def __init__(self):
            super().__init__()
            self.register_buffer("mask", torch.ones(6), persistent=False)
            self.table = torch.arange(6.0)
        def forward(self, x):
            return x * self.mask + self.table
        """,
        "[torch.rand(3, 6)]",
    )

    assert [(t.name, t.role) for t in spec.weights] == [("mask", "buffer"), ("table", "buffer")]


def test_several_inputs_outputs_and_scalars(tmp_path: Path) -> None:
    spec = inspected(
        tmp_path,
        """
        def forward(self, x, s, pair):
            return x * s, (pair[0] + 1, pair[1])
        """,
        "[torch.rand(4), 2.5, [torch.rand(2), torch.rand(3)]]",
    )

    assert [t.name for t in spec.inputs] == ["x", "pair_0", "pair_1"]
    assert spec.scalars == (ScalarSpec("s", "double", 2.5),)
    assert [(t.name, t.shape) for t in spec.outputs] == [("out0", (4,)), ("out1", (2,)), ("out2", (3,))]


def test_inputs_get_their_names_also_from_the_structures_of_older_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    """In PyTorch 2.6 to 2.9, structures have the attribute `children_specs`, but no method `children`."""
    source = HEAD + "class Model(nn.Module):\n    def forward(self, x, pair):\n        return x\n"
    module = ProblemModule(source + "def get_inputs():\n    return [torch.rand(4), [torch.rand(4), 2]]\n", "case.py")
    built = build_fake(module, FakeTensorMode())
    children = TreeSpec.children
    monkeypatch.delattr(TreeSpec, "children")
    monkeypatch.setattr(TreeSpec, "children_specs", property(children))

    assert _input_names(built) == ["x", "pair_0", "pair_1"]


def test_names_that_cplusplus_keeps_are_renamed(tmp_path: Path) -> None:
    spec = inspected(
        tmp_path,
        "def forward(self, int, out, workspace):\n    return int + out + workspace",
        "[torch.rand(4), torch.rand(4), torch.rand(4)]",
    )

    assert spec.c_refusal is None
    assert [t.name for t in spec.tensors] == ["int_", "out", "workspace_", "out_v2"]


def test_the_same_tensor_passed_twice_is_two_arguments(tmp_path: Path) -> None:
    spec = inspected(tmp_path, "def forward(self, a, b):\n    return a - b", "[torch.rand(4)] * 2")

    assert spec.graph is not None
    assert spec.graph[2].args == ({"ref": "a"}, {"ref": "b"})


def test_a_file_that_names_cuda_is_inspected_without_one(tmp_path: Path) -> None:
    spec = inspected(
        tmp_path,
        "def forward(self, x):\n    return x.cuda() + torch.ones(8, device='cuda').to('cuda:0')",
        "[torch.rand(8, device='cuda', dtype=torch.float16)]",
    )

    assert spec.c_refusal is None
    assert spec.inputs[0].dtype == "float16"


def test_in_place_updates_of_temporaries_become_functional(tmp_path: Path) -> None:
    spec = inspected(
        tmp_path, "def forward(self, x):\n    y = x * 2\n    y += 1\n    return y.relu_()", "[torch.rand(8)]"
    )

    assert targets(spec) == ["aten.mul.Tensor", "aten.add.Tensor", "aten.relu.default"]


def test_infinity_survives_json(tmp_path: Path) -> None:
    spec = inspected(
        tmp_path, "def forward(self, x):\n    return x.masked_fill(x > 0, float('-inf'))", "[torch.rand(8)]"
    )

    assert spec.graph is not None
    assert spec.graph[-2].args[-1] == "-inf"


def test_a_constructor_that_reads_values_is_run_for_real(tmp_path: Path) -> None:
    spec = inspected(
        tmp_path,
        """
        def __init__(self):
            super().__init__()
            rates = [rate.item() for rate in torch.linspace(0, 1, 3)]
            self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in rates)
        def forward(self, x):
            for layer in self.layers:
                x = layer(x)
            return x
        """,
        "[torch.rand(2, 4)]",
    )

    assert spec.c_refusal is None
    assert len(spec.weights) == 6


def test_a_constructor_that_goes_through_numpy_is_run_for_real(tmp_path: Path) -> None:
    body = """
    def __init__(self):
        super().__init__()
        self.register_buffer("scale", torch.from_numpy(2 * torch.rand(6).numpy()))
    def forward(self, x):
        return x * self.scale
    """
    assert [t.shape for t in inspected(tmp_path, body, "[torch.rand(3, 6)]").weights] == [(6,)]


@pytest.mark.parametrize(
    "inputs",
    [
        "[(x := torch.rand(4, 3)) / x.max().item()]",
        "[x] if ((x := torch.rand(4, 3)) >= 0).all() else None",
        "[torch.from_numpy(torch.rand(4, 3).numpy())]",
    ],
)
def test_inputs_that_depend_on_values_are_drawn_for_real(tmp_path: Path, inputs: str) -> None:
    spec = inspected(tmp_path, "def forward(self, x):\n    return x * 2", inputs)

    assert spec.c_refusal is None
    assert [(t.name, t.shape) for t in spec.tensors] == [("x", (4, 3)), ("out", (4, 3))]


def test_a_file_that_sets_defaults_of_pytorch_leaves_later_files_alone(tmp_path: Path) -> None:
    source = HEAD + "class Model(nn.Module):\n    def forward(self, x):\n        return x\n"
    source += "def get_inputs():\n    return [torch.rand(4)]\n"
    setting = (
        "torch.set_default_dtype(torch.float64)\ntorch.set_default_device('meta')\ntorch.set_grad_enabled(False)\n"
    )

    files = [source + setting, source]
    found = [_inspect_job(0, Job("case", str(tmp_path / "case.py"), one), 60).spec for one in files]

    assert [spec and spec.inputs[0].dtype for spec in found] == ["float64", "float32"]
    assert torch.get_default_device() == torch.device("cpu")
    assert torch.is_grad_enabled()


def test_a_gather_needs_only_the_rows_it_selects(tmp_path: Path) -> None:
    spec = inspected(
        tmp_path,
        """
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(1_000_000, 10)
        def forward(self, i):
            return self.table(i)
        """,
        "[torch.randint(0, 1000, (50,))]",
    )

    assert spec.sol_bytes == 50 * 8 + 2 * 50 * 10 * 4


@pytest.mark.parametrize(
    ("body", "inputs", "reason"),
    [
        ("def forward(self, x):\n    return F.dropout(x, 0.5, training=self.training)", "[torch.rand(4)]", "random"),
        ("def forward(self, x):\n    return x + torch.randn(4)", "[torch.rand(4)]", "random"),
        ("def forward(self, x):\n    return x, 3", "[torch.rand(4)]", "non-tensor"),
        ("def forward(self, x):\n    return x.shape", "[torch.rand(4)]", "returns no tensor"),
        (
            "def forward(self, x):\n    for _ in range(600):\n        x = x + 1\n    return x",
            "[torch.rand(1 << 27)]",
            "more than 500 operators and is too large",
        ),
        ("def forward(self, x):\n    return x[x > 0]", "[torch.rand(4)]", "depend on the values"),
        ("def forward(self, x):\n    return x if x.sum() > 0 else -x", "[torch.rand(4)]", "depend on the values"),
        ("def forward(self, x):\n    return x + 1", "[torch.rand(4, 5).T]", "not contiguous"),
        ("def forward(self, x):\n    return x * 2", "[torch.rand(4, dtype=torch.complex64)]", "complex64"),
        ("def forward(self, x, d):\n    return x", "[torch.rand(4), object()]", "neither a tensor nor a number"),
    ],
)
def test_what_has_no_c_form_says_why(tmp_path: Path, few_operators: None, body: str, inputs: str, reason: str) -> None:
    spec = inspected(tmp_path, body, inputs)

    assert spec.c_refusal is not None and reason in spec.c_refusal


@pytest.mark.parametrize(
    ("body", "inputs", "languages"),
    [
        ("def forward(self, x):\n    return F.dropout(x, 0.5)", "[torch.rand(4)]", ("py", "triton")),
        ("def forward(self, x):\n    return x, 3", "[torch.rand(4)]", ("py", "triton")),
        ("def forward(self, x):\n    return x / x.abs().max().item()", "[torch.rand(4)]", ("py", "triton")),
        ("def forward(self, x):\n    return x[x > 0]", "[torch.rand(1 << 27)]", ()),
        ("def forward(self, x):\n    return x * 1j", "[torch.rand(4)]", ()),
    ],
)
def test_what_has_no_c_form_is_solved_in_python_where_its_outputs_are_known(
    tmp_path: Path, body: str, inputs: str, languages: tuple[str, ...]
) -> None:
    assert inspected(tmp_path, body, inputs).languages == languages


def test_an_input_that_the_model_writes_is_an_in_out_argument(tmp_path: Path) -> None:
    spec = inspected(tmp_path, "def forward(self, x, y):\n    return x.add_(y)", "[torch.rand(4), torch.rand(4)]")

    assert spec.c_refusal is None
    assert [(t.name, t.mutated) for t in spec.inputs] == [("x", True), ("y", False)]
    assert "launch(float* x, const float* y, float* out" in prototype(spec, "cpp")


def test_a_small_model_of_very_many_operators_has_its_shapes_from_one_run(tmp_path: Path, few_operators: None) -> None:
    body = """
    def __init__(self):
        super().__init__()
        self.gru = nn.GRU(3, 4, 1)
        self.register_buffer("calls", torch.zeros(()))
    def forward(self, x):
        self.calls += 1
        return self.gru(x)
    """
    spec = inspected(tmp_path, body, "[torch.rand(90, 1, 3)]")

    assert (spec.graph, spec.c_refusal, spec.random) == (None, None, False)
    assert [t.shape for t in spec.outputs] == [(90, 1, 4), (1, 1, 4)]
    assert [t.name for t in spec.weights if t.mutated] == ["calls"]


@pytest.mark.parametrize(
    "body",
    [
        """
        class Double(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                return x * 2
        def forward(self, x):
            return self.Double.apply(x)
        """,
        """
        def forward(self, x):
            with torch.enable_grad():
                y = x.detach().requires_grad_()
                return torch.autograd.grad((y**3).sum(), y)[0]
        """,
        """
        @torch.compile
        def forward(self, x):
            return x * 2
        """,
    ],
)
def test_a_small_model_that_only_the_tracer_rejects_has_its_shapes_from_one_run(tmp_path: Path, body: str) -> None:
    spec = inspected(tmp_path, body, "[torch.rand(4, 3)]")

    assert (spec.graph, spec.c_refusal) == (None, None)
    assert [t.shape for t in spec.outputs] == [(4, 3)]


def test_the_error_of_a_model_that_fails_is_its_own(tmp_path: Path) -> None:
    body = "def forward(self, x):\n    if x.sum().item() > 0:\n        raise ValueError('negative numbers only')"

    with pytest.raises(ValueError, match="negative numbers only"):
        inspected(tmp_path, body, "[torch.ones(4)]")


EMA = """
    def __init__(self):
        super().__init__()
        self.{0}
    def forward(self, x):
        self.ema = 0.9 * self.ema + 0.1 * x.mean(0){1}
        return x - self.ema
"""


@pytest.mark.parametrize(
    "body",
    [
        EMA.format("register_buffer('ema', torch.zeros(3))", ""),
        EMA.format("ema = torch.zeros(3)", ""),
        EMA.format("register_buffer('ema', torch.zeros(3))", ".max().item()"),
        EMA.format("ema = torch.zeros(3)", ".max().item()"),
    ],
    ids=["buffer", "attribute", "untraceable buffer", "untraceable attribute"],
)
def test_a_model_that_reads_and_replaces_a_buffer_is_refused(tmp_path: Path, body: str) -> None:
    """The judge cannot reset such a model, and a kernel would not get the new values."""
    with pytest.raises(ProblemFileError, match="`ema`"):
        inspected(tmp_path, body, "[torch.rand(4, 3)]")


def test_a_model_may_replace_tensors_that_it_does_not_read(tmp_path: Path) -> None:
    """KernelBench's VanillaRNN overwrites its hidden state, and weight_norm computes the weight in each call."""
    body = """
    def __init__(self):
        super().__init__()
        self.linear = nn.utils.weight_norm(nn.Linear(3, 3))
        self.register_buffer("scale", torch.ones(3))
        self.hidden = torch.zeros(4, 3)
    def forward(self, x, h):
        self.scale = self.scale.to(x.device)
        self.hidden.copy_(h)
        self.hidden = torch.tanh(self.linear(x) + self.hidden)
        return self.hidden * self.scale
    """
    assert inspected(tmp_path, body, "[torch.rand(4, 3), torch.rand(4, 3)]").c_refusal is None


def test_dropout_of_nothing_is_no_draw(tmp_path: Path) -> None:
    body = "def forward(self, x):\n    return F.dropout(x, 0.0, training=True) * 2"

    assert inspected(tmp_path, body, "[torch.rand(4)]").c_refusal is None


@pytest.mark.parametrize("body", ["pass", "def forward(self, x):\n    raise NotImplementedError"])
def test_a_model_that_does_nothing_yet_is_no_operator_that_cannot_be_traced(tmp_path: Path, body: str) -> None:
    with pytest.raises(NotImplementedError):
        inspected(tmp_path, body, "[torch.rand(4)]")
