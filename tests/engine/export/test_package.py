"""An exported wheel in a process without kernel-tui and without a compiler, checked by PyTorch's own ``opcheck``."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from engine.exit_codes import ExitCode
from engine.export import ExportError
from engine.export.package.build import built_library, processor_features, write_wheel
from engine.export.package.tree import PackagedKernel, check_problem, package_tree
from engine.export.standalone.program import program
from engine.export.standalone.reference import expected_of
from engine.problem.inspection import inspect_file
from engine.session.store import SessionPaths
from tests.engine.export.test_session_exports import command
from tests.patience import PATIENCE_S

SCALE = """
import torch
FACTOR = 1.0
class Model(torch.nn.Module):
    def __init__(self, features, shift):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.rand(features))
        self.shift = shift
    def forward(self, x, factor=FACTOR):
        return x * (self.weight * factor) + self.shift
def get_inputs():
    return [torch.randn(64, 32)]
def get_init_inputs():
    return [32, 3.0]
"""
SCALE_KERNEL = """
extern "C" int launch(const float* x, const float* weight, float* out, void*) {
    for (long long i = 0; i < x_numel; ++i) out[i] = x[i] * weight[i % x_dim1] + 3.0f;
    return 0;
}
"""
GRADIENT = """
import torch
class Model(torch.nn.Module):
    def forward(self, grad, x, weight):
        return grad * weight, (grad * x).sum(0)
def get_inputs():
    return [torch.randn(64, 32), torch.randn(64, 32), torch.rand(32)]
"""
GRADIENT_KERNEL = """
extern "C" int launch(const float* grad, const float* x, const float* weight, float* out0, float* out1, void*) {
    for (long long j = 0; j < weight_dim0; ++j) out1[j] = 0;
    for (long long i = 0; i < x_numel; ++i) {
        out0[i] = grad[i] * weight[i % x_dim1];
        out1[i % x_dim1] += grad[i] * x[i];
    }
    return 0;
}
"""
BIAS = """
import torch
class Model(torch.nn.Module):
    def forward(self, x, bias=None):
        return x if bias is None else x + bias
def get_inputs():
    return [torch.randn(4, 8), torch.randn(8)]
"""
BIAS_KERNEL = """
extern "C" int launch(const float* x, const float* bias, float* out, void*) {
    for (long long i = 0; i < x_numel; ++i) out[i] = x[i] + bias[i % x_dim1];
    return 0;
}
"""
MASK = """
import torch
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.floor = torch.nn.Parameter(torch.full((1,), FLOOR))
    def forward(self, x):
        return torch.where(x > 0, x, self.floor.new_tensor(float("-inf"))) + 0 * self.floor
def get_inputs():
    return [torch.randn(64, 32)]
"""
MASK_KERNEL = """
#include <cmath>
extern "C" int launch(const float* x, const float* floor, float* out, void*) {
    for (long long i = 0; i < x_numel; ++i) out[i] = x[i] > 0 ? x[i] : -INFINITY;
    return 0;
}
"""
USE_RELU = """
import os, sys
import torch, relus
from torch.utils._python_dispatch import TorchDispatchMode
assert "engine" not in sys.modules and "kernel_tui" not in sys.modules
reference = relus.relu_reference.Model()
known = relus.relu_reference.get_inputs()[0]
calls = []
launch = relus.relu.__globals__["OPERATOR"]._launch
relus.relu.__globals__["OPERATOR"]._launch = lambda *given: (calls.append(1), launch(*given))[1]
assert torch.equal(relus.relu(known), reference(known)) and calls == [1], "the kernel ran"
other = torch.randn(3, 5)
assert torch.equal(relus.relu(other), reference(other)) and calls == [1], "another shape: the reference"
assert torch.equal(relus.relu(known.double()), reference(known.double())) and calls == [1], "another dtype too"
strided = torch.cat([known, known])[1:1 + known.shape[0]].t().contiguous().t()
assert torch.equal(relus.relu(strided), reference(strided)) and calls == [1, 1], "any strides"
class Seen(TorchDispatchMode):
    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        seen.append(operator)
        return operator(*args, **(kwargs or {}))
seen = []
with Seen():
    relus.relu(known)
assert seen == [torch.ops.relus.relu.default] and calls == [1, 1, 1], "a mode sees the operator"
calls.pop()
for sample in (known, other, strided, known.clone().requires_grad_()):
    found = torch.library.opcheck(torch.ops.relus.relu, (sample,), raise_exception=not sample.requires_grad)
    assert sample.requires_grad or set(found.values()) == {"SUCCESS"}, found
model = torch.nn.Sequential(relus.Relu(), torch.nn.Linear(known.shape[-1], 3))
compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
with torch.no_grad():
    torch.testing.assert_close(compiled(known), model[1](reference(known)))
    torch.testing.assert_close(compiled(known[:7]), model[1](reference(known[:7])))
try:
    relus.relu(known.clone().requires_grad_()).sum().backward()
except RuntimeError as error:
    assert "no backward kernel" in str(error) and "torch.no_grad()" in str(error)
else:
    raise AssertionError("it has no gradients")
import warnings
operator = relus.relu.__globals__["OPERATOR"]
operator._target, operator._mismatches = operator._target._replace(features=frozenset({"avx2048"})), {}
ran = len(calls)
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    for _ in range(2):
        assert torch.equal(relus.relu(known), reference(known))
assert len(calls) == ran and [str(one.message) for one in said if "avx2048" in str(one.message)][1:] == [], said
assert any("lacks avx2048" in str(one.message) for one in said)
print("all right")
"""
USE_WITHOUT = """
import importlib, torch
internal, keys = torch._C, torch._C.DispatchKeySet
names = ((internal, "_after_autograd_keyset"), (internal, "_any_requires_grad"),
         (internal, "_AutoDispatchBelowAutograd"), (keys, "raw_repr"), (torch.utils._pytree, "tree_leaves"))
for number, (owner, name) in enumerate(names):
    kept = getattr(owner, name)
    delattr(owner, name)
    package = importlib.import_module(f"scales{number}")
    setattr(owner, name, kept)  # PyTorch needs it too
    assert package._runtime.DISPATCHES_ONCE == (name == "tree_leaves"), name
    x, weight = torch.randn(64, 32, requires_grad=True), torch.rand(32, requires_grad=True)
    package.scale(x, weight).sum().backward()
    torch.testing.assert_close(x.grad, weight.expand(64, 32))
    torch.testing.assert_close(weight.grad, x.sum(0))
    with torch.no_grad():
        torch.testing.assert_close(package.scale(x, weight), x * weight + 3.0)
    torch.testing.assert_close(package.scale(x[:2], weight), x[:2] * weight + 3.0)
    try:
        package.gradient(x, x, weight)[0].sum().backward()
    except RuntimeError as error:
        assert "no backward kernel" in str(error)
    else:
        raise AssertionError("it has no gradients")
found = torch.library.opcheck(torch.ops.scales0.scale, (x, weight))
assert set(found.values()) == {"SUCCESS"}, found
print("all right")
"""
USE_SCALE = """
import torch, scales
x, weight = torch.randn(64, 32, requires_grad=True), torch.rand(32, requires_grad=True)
reference = scales.scale_reference.Model(32, 3.0)
torch.testing.assert_close(scales.scale(x, weight), x * weight + 3.0)
found = torch.library.opcheck(torch.ops.scales.scale, (x, weight))
assert set(found.values()) == {"SUCCESS"}, found
assert torch.autograd.gradcheck(scales.scale, (x.double()[:2], weight.double())), "the reference of the backward kernel"
scales.scale(x, weight).sum().backward()
torch.testing.assert_close(x.grad, weight.expand(64, 32))
torch.testing.assert_close(weight.grad, x.sum(0))
model = scales.Scale()
model.load_state_dict(reference.state_dict())
torch.testing.assert_close(torch.compile(model, fullgraph=True, backend="aot_eager")(x), reference(x))
torch.testing.assert_close(model(x, 2.0), reference(x, 2.0), msg="another value than the default")
other = scales.Scale(32, 7.0)
torch.testing.assert_close(other(x), x * other.weight + 7.0)
print("all right")
"""


def unpacked(wheel: Path) -> Path:
    """Return the folder in which the wheel is installed."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site := wheel.parent / "site")
    return site


def use(site: Path, code: str) -> str:
    """Run ``code`` in a process that sees ``site`` and the libraries of this environment, but no compiler."""
    libraries = [path for path in sys.path if path.endswith("site-packages")]
    place = f"import sys; sys.path[:0] = {[str(site)]!r}; sys.path += {libraries!r}\n"
    run = [sys.executable, "-I", "-c", place + code]
    done = subprocess.run(run, env={"PATH": "", "HOME": str(site)}, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_wheel_of_the_best_kernel_is_an_operator(session: SessionPaths, tmp_path: Path) -> None:
    done = command(session, str(session.directory), "--best", "relu", "--package", "relus", "-o", str(tmp_path))
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("relus-*-py3-none-linux_*.whl")
    assert str(wheel) in done.stderr
    assert "all right" in use(unpacked(wheel), USE_RELU)


def test_a_wheel_is_replaced_only_with_force(session: SessionPaths, tmp_path: Path) -> None:
    export = (str(session.directory), "--best", "relu", "--package", "relus", "-o", str(tmp_path))
    assert command(session, *export).returncode == 0
    (wheel,) = tmp_path.glob("*.whl")
    wheel.write_text("the first")
    refused = command(session, *export)
    assert refused.returncode == ExitCode.USAGE and f"{wheel} already exists" in refused.stderr
    assert wheel.read_text() == "the first"
    assert command(session, *export, "--force").returncode == 0
    assert zipfile.is_zipfile(wheel)


@pytest.fixture(scope="module")
def scales(tmp_path_factory: pytest.TempPathFactory) -> list[PackagedKernel]:
    """A kernel and the kernel that computes its gradients."""
    folder = tmp_path_factory.mktemp("scales")

    async def made() -> list[PackagedKernel]:
        found = []
        for name, problem, source in (("scale", SCALE, SCALE_KERNEL), ("gradient", GRADIENT, GRADIENT_KERNEL)):
            file = folder / f"{name}.py"
            file.write_text(problem)
            spec = inspect_file(file, name)
            library = await built_library(spec, "cpp", source, "")
            backward = "gradient" if spec.id == "scale" else ""
            kernel = PackagedKernel(spec, "cpp", source, "A test.", library, features=processor_features(),
                                    backward=backward)  # fmt: skip
            found.append(kernel)
        return found

    return asyncio.run(made())


def test_a_backward_kernel_computes_the_gradients(scales: list[PackagedKernel], tmp_path: Path) -> None:
    wheel = write_wheel(package_tree("scales", scales), tmp_path)
    assert "all right" in use(unpacked(wheel), USE_SCALE)


def test_a_call_without_an_optional_tensor_uses_the_reference(tmp_path: Path) -> None:
    (tmp_path / "bias.py").write_text(BIAS)
    spec = inspect_file(tmp_path / "bias.py", "bias")
    library = asyncio.run(built_library(spec, "cpp", BIAS_KERNEL, ""))
    kernel = PackagedKernel(spec, "cpp", BIAS_KERNEL, "A test.", library, features=processor_features())
    wheel = write_wheel(package_tree("biased", [kernel]), tmp_path)
    code = """
import torch, biased
x, bias = torch.randn(4, 8), torch.randn(8)
assert torch.equal(biased.Bias()(x, bias), x + bias) and torch.equal(biased.Bias()(x), x)
"""
    use(unpacked(wheel), code)


def test_operators_work_without_private_names_of_pytorch(scales: list[PackagedKernel], tmp_path: Path) -> None:
    site = tmp_path / "site"
    for number in range(5):
        for path, content in package_tree(f"scales{number}", scales).items():
            (file := site / path).parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)
    assert "all right" in use(site, USE_WITHOUT)


@pytest.mark.parametrize("name", ["two words", "1st", "class", "a.b", ""])
def test_a_name_that_python_cannot_import_is_refused(name: str) -> None:
    with pytest.raises(ExportError, match="is not a valid name for a Python package"):
        package_tree(name, [])


def test_a_near_name_is_suggested() -> None:
    with pytest.raises(ExportError, match=r"such as my_op$"):
        package_tree("my-op", [])


def test_names_in_a_package_are_distinct(tmp_path: Path) -> None:
    file = tmp_path / "problem.py"
    file.write_text(GRADIENT)

    def kernel(name: str) -> PackagedKernel:
        return PackagedKernel(inspect_file(file, name), "cpp", GRADIENT_KERNEL, "A test.", b"")

    made = package_tree("few", [kernel("Softmax")])["few/Softmax.py"].decode()
    assert "def Softmax(" in made and "class SoftmaxModule(" in made
    for names, shared in ((("a-b", "a.b"), "a_b"), (("a", "a_reference"), "a_reference"),
                          (("softmax", "Softmax"), "Softmax"), (("torch",), "torch")):  # fmt: skip
        with pytest.raises(ExportError, match=f"the name {shared} twice, "):
            package_tree("few", [kernel(name) for name in names])


def test_a_kernel_that_is_compiled_when_it_runs_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "problem.py"
    file.write_text(GRADIENT)
    with pytest.raises(ExportError, match="cannot contain a Python or Triton kernel"):
        check_problem(inspect_file(file, "gradient"), "triton")


def test_a_program_of_its_own_checks_and_times_the_kernel(session: SessionPaths, tmp_path: Path) -> None:
    file = tmp_path / "mine.cpp"
    done = command(session, str(session.directory), "--best", "relu", "--standalone", "-o", str(file))
    assert done.returncode == 0, done.stderr
    assert f" {file} -o {tmp_path / 'mine'} && {tmp_path / 'mine'}\n" in done.stderr
    text = file.read_text()
    assert " mine.cpp -o mine && ./mine\n" in text
    wrong = text.replace("? x[i]", "? 1.5f * x[i]")
    assert wrong != text
    for source, status, said in ((text, 0, "elements agree (tolerance 0.0001)"), (wrong, 1, "expected ")):
        program = tmp_path / "relu"
        file.write_text(source)
        subprocess.run(
            ["g++", "-std=c++20", "-O2", "-fopenmp", str(file), "-o", str(program)], check=True, timeout=PATIENCE_S
        )
        ran = subprocess.run([str(program)], capture_output=True, text=True, timeout=PATIENCE_S)
        assert ran.returncode == status and said in ran.stdout, ran.stdout
        assert re.search(r"ms, median of 50 calls, [\d.]+ ms at best; the verdict: 0.4 ms", ran.stdout)


def test_a_program_compares_infinities_and_cannot_generate_them(tmp_path: Path) -> None:
    file = tmp_path / "mask.py"
    file.write_text(MASK.replace("FLOOR", "0.0"))
    spec = inspect_file(file, "mask")
    text = program(spec, "cpp", MASK_KERNEL, expected_of(spec))
    for source, status in ((text, 0), (text.replace(": -INFINITY;", ": -1e30f;"), 1)):
        (tmp_path / "mask.cpp").write_text(source)
        command = ["g++", "-std=c++20", "-O2", str(tmp_path / "mask.cpp"), "-o", str(tmp_path / "mask")]
        subprocess.run(command, check=True, timeout=PATIENCE_S)
        ran = subprocess.run([str(tmp_path / "mask")], capture_output=True, text=True, timeout=PATIENCE_S)
        assert ran.returncode == status, ran.stdout
    file.write_text(MASK.replace("FLOOR", 'float("-inf")'))
    with pytest.raises(ExportError, match="mask: floor contains infinities or NaN, so a program cannot generate it"):
        expected_of(inspect_file(file, "mask"))
