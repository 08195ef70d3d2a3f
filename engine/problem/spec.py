"""A problem's specification: tensors, scalars, traced graph and minimum memory traffic. This module does not import
torch.

A problem is a PyTorch ``Model`` with ``get_inputs()`` and ``get_init_inputs()`` (KernelBench's format).
``engine.problem.inspection`` derives a :class:`ProblemSpec` from the problem's file. ``engine.problem.c_header`` turns
the specification into the C header for kernels.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import prod
from typing import Any, Literal

from msgspec import Struct, field

DTYPE_BYTES = {
    "float64": 8,
    "float32": 4,
    "float16": 2,
    "bfloat16": 2,
    "int64": 8,
    "int32": 4,
    "int16": 2,
    "int8": 1,
    "uint8": 1,
    "bool": 1,
}

Role = Literal["input", "parameter", "buffer", "output"]
Language = Literal["cpp", "cu", "py", "triton"]
LANGUAGE_OF_SUFFIX: dict[str, Language] = {".cpp": "cpp", ".cu": "cu", ".py": "py"}
LANGUAGE_NAMES: dict[Language, str] = {"cu": "cuda", "cpp": "cpp", "py": "python", "triton": "triton"}
"""The names of languages on screens, in options and in the JSON that commands print. Sessions store the keys of this
mapping.
"""
LANGUAGE_TITLES: dict[Language, str] = {"cu": "CUDA C++", "cpp": "C++", "py": "Python", "triton": "Triton"}
"""The names of languages in sentences, including sentences for language models."""
MODULES: tuple[Language, ...] = ("py", "triton")
"""Languages of kernels that are Python modules with a ``ModelNew``. The judge treats these languages alike."""
DeviceKind = Literal["cpu", "cuda"]
LANGUAGE_OF_DEVICE: dict[DeviceKind, Language] = {"cpu": "cpp", "cuda": "cu"}
LANGUAGE_KEYS: dict[str, Language] = {name: language for language, name in LANGUAGE_NAMES.items()}
LANGUAGES_OF_DEVICE: dict[DeviceKind, tuple[Language, ...]] = {"cpu": ("cpp", "py"), "cuda": ("cu", "triton", "py")}
"""Languages of the kernels that a device runs, the device's own language first. Triton compiles for GPUs only."""
_IMPORTS_TRITON = re.compile(r"^\s*(?:import\s+(?:[\w.]+\s*,\s*)*|from\s+)triton\b", re.MULTILINE)


def suffix_of(language: Language) -> str:
    """Return the suffix of a kernel's file, such as ``.cu``. A Triton kernel is a ``.py`` file."""
    return ".py" if language == "triton" else f".{language}"


def language_of_file(suffix: str, source: str) -> Language | None:
    """Return the language of a kernel file, or None for an unknown suffix. The language of a module that imports Triton
    is Triton.
    """
    language = LANGUAGE_OF_SUFFIX.get(suffix)
    return "triton" if language == "py" and imports_triton(source) else language


def imports_triton(source: str) -> bool:
    """Return whether a module imports Triton at the beginning of a line."""
    return _IMPORTS_TRITON.search(source) is not None


class TensorSpec(Struct, frozen=True, omit_defaults=True):
    """One tensor argument of the kernel: contiguous, 256-byte aligned, owned by the judge.

    ``name`` is a valid C identifier (``ln_weight``); ``source_name`` is PyTorch's name (``ln.weight``). ``mutated``
    marks a buffer that the model writes (an in-out argument).
    """

    name: str
    role: Role
    dtype: str
    shape: tuple[int, ...]
    source_name: str = ""
    mutated: bool = False

    @property
    def numel(self) -> int:
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.numel * DTYPE_BYTES[self.dtype]


class ScalarSpec(Struct, frozen=True, omit_defaults=True):
    """A number that becomes a ``constexpr`` in the kernel's header: an input of ``forward`` or an init argument."""

    name: str
    ctype: Literal["long long", "double", "bool"]
    value: int | float | bool


class GraphNode(Struct, frozen=True, omit_defaults=True):
    """One node of the traced reference, in execution order (``make_fx`` over fake tensors).

    ``op`` is one of four kinds. A ``placeholder`` is an input, parameter or buffer; ``target`` is the tensor's name in
    the specification. A ``call`` has an ATen overload such as ``aten.mul.Tensor`` as ``target``. A ``getitem`` is
    element ``args[1]`` of a call that returns several tensors. An ``output`` has the returned nodes in ``args``.

    ``args`` and ``kwargs`` hold numbers, strings, None, lists, and {"ref": name} for the value of another node.
    """

    name: str
    op: Literal["placeholder", "call", "getitem", "output"]
    target: str
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = {}
    shape: tuple[int, ...] | None = None
    dtype: str | None = None


class ProblemSpec(Struct, frozen=True, omit_defaults=True):
    """One problem's specification, for the search, the proposers and the judge.

    ``id``: a name that is unique in its session and safe as a file name. ``source``: the whole reference file.
    ``c_refusal``: one sentence that says why C++ and CUDA kernels are impossible, or None. ``sol_bytes``: the minimum
    memory traffic of a kernel, in bytes: inputs, parameters and buffers read once, and outputs written once. ``flops``:
    number of operations, as :func:`engine.problem.tracing.graph.count_flops` counts them, or None if unknown.
    ``graph``: the reference as ATen operators, or None if the trace is incomplete. ``random``: whether the model draws
    random numbers. If so, the judge gives the model and a Python kernel the same seed.
    """

    id: str
    name: str
    path: str
    source: str
    tensors: tuple[TensorSpec, ...]
    scalars: tuple[ScalarSpec, ...] = ()
    c_refusal: str | None = None
    sol_bytes: int = field(default=0, name="floor_bytes")
    flops: int | None = None
    graph: tuple[GraphNode, ...] | None = None
    random: bool = False

    @property
    def languages(self) -> tuple[Language, ...]:
        """Languages that a kernel for this problem can use. The result is empty if the problem's outputs are unknown or
        a dtype is not supported.
        """
        if self.c_refusal is None:
            return ("cu", "cpp", "py", "triton")
        known = bool(self.outputs) and all(tensor.dtype in DTYPE_BYTES for tensor in self.tensors)
        return MODULES if known else ()

    def languages_on(self, device: DeviceKind, names: Sequence[str]) -> tuple[Language, ...]:
        """Return the languages of the problem's kernels on ``device``. The playbook's language comes first.

        ``names``: the config's languages, by default the device's own. If the problem does not accept C++ or CUDA
        kernels, it gets Python kernels unless ``names`` contains Triton.
        """
        wanted = [LANGUAGE_KEYS[name] for name in names] or [LANGUAGE_OF_DEVICE[device]]
        accepted = [one for one in dict.fromkeys(wanted) if one in MODULES or self.c_refusal is None]
        return tuple(sorted(accepted, key=lambda language: language in MODULES)) or ("py",)

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        return tuple(t for t in self.tensors if t.role == "input")

    @property
    def weights(self) -> tuple[TensorSpec, ...]:
        """Parameters and buffers, in ``state_dict`` order."""
        return tuple(t for t in self.tensors if t.role in ("parameter", "buffer"))

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        return tuple(t for t in self.tensors if t.role == "output")
