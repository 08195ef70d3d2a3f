"""The judge's reference: replayed draws, weights in order, meaningful distributions."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from engine.evaluation.correctness.fp64_reference import run_in
from engine.evaluation.inputs.captured_layers import has_captured_layers
from engine.evaluation.inputs.distributions import KINDS, transform
from engine.evaluation.inputs.reference import Reference
from engine.problem.catalog import resolve
from engine.problem.inspection import inspect_file

CASE = """
import torch
from torch import nn
class Model(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.lin = nn.Linear(features, 3)
        self.bn = nn.BatchNorm1d(3)
        self.table = torch.rand(3)
    def forward(self, x, s, pair):
        return self.bn(self.lin(x)) * s + self.table, pair[0] + pair[1]
def get_inputs():
    return [torch.randn(8, 5), 2.0, (torch.rand(4), torch.rand(4))]
def get_init_inputs():
    return [5]
"""


def load(source: str = CASE) -> Reference:
    return Reference.load(source, "case.py", "cpu")


def elementwise(expression: str, inputs: str = "torch.rand(1000)") -> Reference:
    return load(
        "import torch\nclass Model(torch.nn.Module):\n"
        f"    def forward(self, x):\n        return {expression}\n"
        f"def get_inputs():\n    return [{inputs}]\ndef get_init_inputs():\n    return []\n"
    )


def test_weights_and_inputs_come_in_the_order_of_the_specification(tmp_path: Path) -> None:
    path = tmp_path / "case.py"
    path.write_text(CASE)
    spec = inspect_file(path, "case")
    reference = load()

    leaves = reference.draw(1)

    assert [name for name, _ in reference.weights()] == [t.source_name for t in spec.weights]
    assert [tuple(t.shape) for t in reference.tensors(leaves)] == [t.shape for t in spec.inputs]
    assert [tuple(t.shape) for t in reference.run(leaves)] == [t.shape for t in spec.outputs]


def test_weights_are_those_of_kernelbench() -> None:
    torch.manual_seed(42)
    expected = torch.nn.Linear(5, 3)

    assert torch.equal(load().model.lin.weight, expected.weight)


def test_draws_follow_their_seed() -> None:
    reference = load()

    first, again, other = reference.draw(1), reference.draw(1), reference.draw(2)

    assert torch.equal(first[0], again[0])
    assert not torch.equal(first[0], other[0])


def test_two_references_share_no_namespace() -> None:
    source = "calls = []\n" + CASE.replace("def get_inputs():", "def get_inputs():\n    calls.append(1)")
    one, two = load(source), load(source)
    before = len(one._module.get_inputs.__globals__["calls"])

    two.draw(3)

    assert len(one._module.get_inputs.__globals__["calls"]) == before


def test_perturbed_weights_change_the_output_and_reset_gives_it_back() -> None:
    reference = load()
    leaves = reference.draw(1)
    buffers = {name: tensor.data_ptr() for name, tensor in reference.weights()}
    expected = reference.run(leaves)[0]

    reference.perturb_weights(7)
    changed = reference.run(leaves)[0]
    reference.reset_weights()

    assert (changed - expected).abs().max() > 1e-2
    assert torch.equal(reference.run(leaves)[0], expected)
    assert {name: tensor.data_ptr() for name, tensor in reference.weights()} == buffers


def test_a_bias_that_starts_at_zero_is_perturbed() -> None:
    source = CASE.replace("self.table = torch.rand(3)", "self.table = nn.Parameter(torch.zeros(3))")
    reference = load(source)

    reference.perturb_weights(1)

    assert reference.model.table.abs().max() > 0


def test_inputs_can_live_in_the_judges_buffers() -> None:
    reference = load()
    leaves = reference.draw(1)

    own = reference.with_tensors([tensor.clone() for tensor in reference.tensors(leaves)])

    assert own[1] == 2.0
    assert torch.equal(reference.run(own)[1], reference.run(leaves)[1])


def test_transforms_leave_their_arguments_and_other_types_alone() -> None:
    leaves = [torch.rand(100), torch.arange(5) + 3, 2.5]
    before = leaves[0].clone()

    changed = {kind: transform(leaves, kind) for kind in KINDS}

    assert torch.equal(leaves[0], before)
    assert all(new[2] == 2.5 for new in changed.values())
    assert all(torch.equal(new[1], leaves[1]) for new in changed.values())
    assert torch.equal(changed["negated"][0], -before)
    assert abs(float(changed["centred"][0].mean())) < 1e-5
    assert changed["offset"][0].min() > before.min()
    factors = (changed["heavy_tailed"][0] / before).log()
    assert abs(float(factors.mean())) < 0.8 and 1.2 < float(factors.std()) < 1.8


def test_only_meaningful_distributions_are_used() -> None:
    assert elementwise("x * 2").variants(elementwise("x * 2").draw(1)) == KINDS
    logarithm = elementwise("torch.log(x)", "torch.rand(1000) + 0.5")
    assert logarithm.variants(logarithm.draw(1)) == ("drawn", "small", "large", "heavy_tailed", "offset")
    indices = elementwise("torch.arange(9)[x]", "torch.randint(0, 9, (10,))")
    assert indices.variants(indices.draw(1)) == ("drawn",)
    mask = elementwise("x + 1", "torch.ones(4).bool()")
    assert mask.variants(mask.draw(1)) == ("drawn",)


@pytest.mark.parametrize("name", ["softmax", "layernorm", "rmsnorm", "gelu", "swiglu", "matmul", "attention"])
def test_quickstart_problems_run(name: str, tmp_path: Path) -> None:
    (file,) = resolve([f"builtin:quickstart/{name}"], tmp_path)
    reference = Reference.load(file.path.read_text(), str(file.path), "cpu")

    (out,) = reference.run(reference.draw(3))

    assert torch.isfinite(out).all()
    assert out.nbytes <= 30 << 20


CAPTURING = """
import functools
from types import SimpleNamespace
import torch
from torch import nn
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleDict({{"one": nn.Linear(4, 4), "two": nn.Linear(4, 3)}})
        layers = self.layers
        {attribute}
    def forward(self, x):
        return {call}
def get_inputs():
    return [torch.randn(8, 4)]
def get_init_inputs():
    return []
"""


@pytest.mark.parametrize(
    ("attribute", "call"),
    [
        ("self.both = lambda x: layers.two(layers.one(x))", "self.both(x)"),
        ("self.both = lambda x: self.layers.two(self.layers.one(x))", "self.both(x)"),
        ("self.both = lambda x, one=layers.one, two=layers.two: two(one(x))", "self.both(x)"),
        ("self.steps = [lambda x: layers.one(x), [lambda x: layers.two(x)]]", "self.steps[1][0](self.steps[0](x))"),
        ("self.both = functools.partial(lambda two, x: two(layers.one(x)), layers.two)", "self.both(x)"),
        ("self.layers.one.register_forward_hook(lambda module, given, out: layers.two(out))", "self.layers.one(x)"),
        ("one, two = layers.one.forward, layers.two.forward; self.both = lambda x: two(one(x))", "self.both(x)"),
        ("self.tools = SimpleNamespace(both=lambda x: layers.two(layers.one(x)))", "self.tools.both(x)"),
        ("t = self.tree = {}; t.update(t=t, both=lambda x: layers.two(layers.one(x)))", "self.tree['both'](x)"),
        ("self.layers.one.activation = torch.nn.functional.relu", "self.layers.two(self.layers.one(x))"),
    ],
)  # fmt: skip
def test_a_copy_runs_with_its_own_weights(attribute: str, call: str) -> None:
    reference = load(CAPTURING.format(attribute=attribute, call=call))
    leaves = reference.draw(1)
    before = [out.clone() for out in reference.run(leaves)]
    twin = reference.twin()
    assert torch.equal(twin.run(leaves)[0], before[0])
    for zeroed in range(4):  # Two weights and two biases, each in turn.
        values = [tensor.clone() for _, tensor in reference.weights()]
        values[zeroed].zero_()
        (wanted,) = run_in(None, reference, leaves, values)
        for (_, tensor), value in zip(twin.weights(), values, strict=True):
            tensor.data = value
        assert torch.equal(twin.run(leaves)[0], wanted) and not torch.equal(wanted, before[0])
    assert torch.equal(reference.run(leaves)[0], before[0])
    (exact,) = run_in(torch.float64, reference, leaves, [tensor for _, tensor in reference.weights()])
    assert exact.dtype == torch.float64 and torch.allclose(exact.float(), before[0], atol=1e-5)


def test_only_functions_with_layers_need_a_rebuilt_model() -> None:
    model = torch.nn.TransformerEncoderLayer(8, 2, activation=lambda x: torch.relu(x) * 2)
    assert not has_captured_layers(model)
    size = 4
    model.scaled = lambda x, by=2.0: x * by / size
    assert not has_captured_layers(model)
    model.scaled = lambda x: model.linear1(x)
    assert has_captured_layers(model)
