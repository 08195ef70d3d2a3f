"""What a problem is to the rest of the engine: tensors, scalars and the floor. Imports no torch.

A problem is a PyTorch ``Model`` with ``get_inputs()`` and ``get_init_inputs()`` (KernelBench's format).
``engine.problem.inspect`` derives a :class:`ProblemSpec` from its file, ``engine.problem.header`` turns the
spec into the C header that a kernel is compiled with.
"""

from __future__ import annotations

from math import prod
from typing import Any, Literal

from msgspec import Struct

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
Form = Literal["cpp", "cu", "py"]
FORM_OF_SUFFIX: dict[str, Form] = {".cpp": "cpp", ".cu": "cu", ".py": "py"}
DeviceKind = Literal["cpu", "cuda"]
FORM_OF_DEVICE: dict[DeviceKind, Form] = {"cpu": "cpp", "cuda": "cu"}


class TensorSpec(Struct, frozen=True, omit_defaults=True):
    """One tensor argument of the kernel: contiguous, 256-byte aligned, owned by the harness.

    ``name`` is a valid C identifier (``ln.weight`` of the state dict becomes ``ln_weight``); ``source_name``
    is what PyTorch calls it. ``mutated`` marks a buffer that the model writes (an in-out argument).
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
    """A number that the kernel sees as ``constexpr``: an input of ``forward`` or an init argument."""

    name: str
    ctype: Literal["long long", "double", "bool"]
    value: int | float | bool


class GraphNode(Struct, frozen=True, omit_defaults=True):
    """One node of the traced reference, in execution order (``make_fx`` over fake tensors).

    ``op``: ``placeholder`` (an input, parameter or buffer: ``target`` is the tensor's name in the spec),
    ``call`` (``target`` is an ATen overload such as ``aten.mul.Tensor``), ``getitem`` (element ``args[1]`` of
    a call that returns several tensors) or ``output`` (``args``: the returned nodes). ``args`` and ``kwargs``
    hold numbers, strings, None, lists, and {"ref": name} for the value of another node.
    """

    name: str
    op: Literal["placeholder", "call", "getitem", "output"]
    target: str
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = {}
    shape: tuple[int, ...] | None = None
    dtype: str | None = None


class ProblemSpec(Struct, frozen=True, omit_defaults=True):
    """One problem as the search, the proposers and the judge see it.

    ``id`` is unique in its session and safe as a file name. ``source`` is the whole reference file.
    ``c_refusal`` says in one sentence why no C form (``.cu``, ``.cpp``) exists, or is None.
    ``floor_bytes``: bytes that must move at least (inputs, parameters and buffers read once, outputs written
    once). ``flops``: floating-point operations of the reference as counted by
    ``torch.utils.flop_counter`` plus one per element of each pointwise operator, or None where unknown.
    ``graph``: the reference as ATen operators, or None where it could not be traced. ``random``: the model draws
    random numbers, so that kernels (``.py`` only) are compared under equal seeds.
    """

    id: str
    name: str
    path: str
    source: str
    tensors: tuple[TensorSpec, ...]
    scalars: tuple[ScalarSpec, ...] = ()
    c_refusal: str | None = None
    floor_bytes: int = 0
    flops: int | None = None
    graph: tuple[GraphNode, ...] | None = None
    random: bool = False

    @property
    def forms(self) -> tuple[Form, ...]:
        """The forms that a kernel of this problem can have; none where its outputs are not known beforehand."""
        if self.c_refusal is None:
            return ("cu", "cpp", "py")
        known = bool(self.outputs) and all(tensor.dtype in DTYPE_BYTES for tensor in self.tensors)
        return ("py",) if known else ()

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
