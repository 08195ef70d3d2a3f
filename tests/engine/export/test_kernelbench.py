"""Solution files have KernelBench's format, pass its checker, keep the reference's weights, and run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.export import ExportError
from engine.export.kernelbench import solution
from engine.export.model_class import model_new
from engine.export.rejected_words import REFUSED, check_words, without_refused_words
from engine.problem.inspection import inspect_file
from engine.problem.spec import ProblemSpec
from tests.engine.export.conftest import EXPLOITS

GELU = Path(__file__).parents[3] / "problems" / "quickstart" / "gelu.py"
CUDA = """
// one pass over the data
/* everything except the tail, which
   a second pass would do */
__global__ void gelu(const float* x, float* out) {
    const char* word = "pass"; int pass = word[0] == 'p';
    out[0] = x[0] * pass;
}
extern "C" size_t workspace_bytes(void) { return 64; }
extern "C" int launch(const float* x, float* out, void* workspace, cudaStream_t stream) {
    gelu<<<1, 1, 0, stream>>>(x, out);
    return 0;
}
"""

NESTED = '''
"""A file with everything that a constructor may need. One pass."""
from __future__ import annotations
import math
from typing import List
import torch
import torch.nn as nn
import torch.nn.functional as F

kernel_tui = 3  # a name that a solution must not take
width = 8
unused = None

def scaled(value: float) -> float:
    """Try: it scales, except zero."""
    return value * math.sqrt(width)

class Block(nn.Module):
    """A block."""
    def __init__(self, size):
        super(Block, self).__init__()
        self.line = nn.Linear(size, size)
    def forward(self, x):
        try:
            return F.relu(self.line(x))
        except ValueError:
            pass

class Model(nn.Module):
    """The model."""
    def __init__(self, sizes: List[int], bias: bool = True):
        """Docstring with pass."""
        super(Model, self).__init__()
        self.blocks = nn.Sequential(*[nn.Linear(size, size) for size in sizes])
        self.gain = nn.Parameter(torch.rand(width) * scaled(2.0))
        self._more(sizes)
    def _more(self, sizes):
        self.register_buffer("shift", torch.randn(sizes[-1]))
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.blocks(x) * self.gain + self.shift
    def extra_repr(self):
        return "pass"

def get_inputs():
    return [torch.rand(4, width)]

def get_init_inputs():
    return [[width, width]]
'''


def problem_of(directory: Path, source: str) -> ProblemSpec:
    file = directory / "problem.py"
    file.write_text(source)
    return inspect_file(file, "problem")


def test_nothing_that_the_checker_refuses_is_left() -> None:
    text = solution(inspect_file(GELU, "gelu"), "cu", CUDA, "From a test, except for this: pass.")
    assert not any(re.search(pattern, text) for pattern in REFUSED)
    assert "__global__" in text and "load_inline" in text
    assert "__future__" not in text and "__file__" not in text
    assert "int pass_ = word[0]" in text and '"pa" "ss"' in text
    compile("import os\nos.environ['A'] = 'b'\n" + text, "solution.py", "exec")


def test_names_of_c_are_kept_apart() -> None:
    assert without_refused_words("int pass = pass_;") == "int pass__ = pass_;"
    assert without_refused_words('s = R"(a pass)";') == 's = R"(a pass)";'
    with pytest.raises(ExportError, match="line 1 of the solution contains 'pass'"):
        check_words('s = R"(a pass)";')
    assert without_refused_words("int bypass; // compass") == "int bypass; // compass"


def test_the_constructor_is_the_references_own(tmp_path: Path) -> None:
    problem = problem_of(tmp_path, NESTED)
    imports, support, model = model_new(problem, "return x", frozenset({"x"}))
    text = "\n".join(["import torch", *imports, *support, model])
    assert not any(re.search(pattern, text) for pattern in REFUSED)
    assert "Block" not in text and "unused" not in text and "extra_repr" not in text and "__future__" not in text
    namespace: dict[str, Any] = {}
    exec(NESTED, namespace)
    torch.manual_seed(42)
    reference = namespace["Model"](*namespace["get_init_inputs"]())
    exec(text, namespace)  # one namespace, as in KernelBench
    torch.manual_seed(42)
    made = namespace["ModelNew"](*namespace["get_init_inputs"]())
    assert list(made.state_dict()) == list(reference.state_dict())
    for name, weight in reference.state_dict().items():
        assert torch.equal(weight, made.state_dict()[name]), name


def test_no_name_of_the_reference_is_taken(tmp_path: Path) -> None:
    text = solution(problem_of(tmp_path, NESTED), "cpp", "// a kernel\n")
    bound = set(re.findall(r"(?m)^(\w+) =", text))
    assert bound - {"width"} == {"kernel_tui_", "kernel_tui__source", "kernel_tui__wrapper"}


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (NESTED.replace("return self.blocks(x)", "return x, self.blocks(x)"), "returns 2 tensors"),
        (NESTED.replace("class Model(", "class Other(") + "\nModel = Other\n", "no class statement for Model"),
        (NESTED.replace("self, x: torch.Tensor", "self, *x").replace("self.blocks(x)", "self.blocks(x[0])"), "args"),
    ],
)
def test_what_cannot_be_exported_says_why(source: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=re.escape(words)):
        solution(problem_of(tmp_path, source), "cpp", "// a kernel\n")


def test_a_python_kernel_is_a_solution_already() -> None:
    assert solution(inspect_file(GELU, "gelu"), "py", "class ModelNew: ...") == "class ModelNew: ..."


def test_an_exported_kernel_computes_the_reference_and_writes_its_buffers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Built by load_inline, as KernelBench does: weights, a written buffer, integers, five inputs."""
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    problem = inspect_file(EXPLOITS / "problems" / "batch_norm.py", "batch_norm")
    kernel = (EXPLOITS / "honest" / "cpp" / "batch_norm_two_passes.cpp").read_text()
    namespace: dict[str, Any] = {}
    exec(problem.source, namespace)
    reference_class, inputs, init_inputs = (namespace[name] for name in ("Model", "get_inputs", "get_init_inputs"))
    exec(solution(problem, "cpp", kernel), namespace)
    with torch.no_grad():
        torch.manual_seed(42)
        reference = reference_class(*init_inputs())
        torch.manual_seed(42)
        made = namespace["ModelNew"](*init_inputs())
        for seed in range(5):
            torch.manual_seed(seed)
            given = inputs()
            assert torch.allclose(made(*given), reference(*given), atol=1e-4, rtol=1e-4)
    for name, value in reference.state_dict().items():
        assert torch.allclose(value.double(), made.state_dict()[name].double()), name
