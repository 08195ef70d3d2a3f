"""Kernels as PyTorch operators. kernel-tui wrote this package, which requires PyTorch but not kernel-tui or a compiler.

An operator runs its kernel if the kernel was built for the call's tensors and device. Otherwise, it runs the reference
model. Every call therefore computes what the reference computes.

A kernel may take less time than the Python code that calls it. The code between the call and the kernel therefore
avoids generators, device objects and a second dispatch. To do so, it uses names that PyTorch does not document. If a
release of PyTorch lacks one of these names, the code uses public functions instead.
"""

from __future__ import annotations

import ctypes
import warnings
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.func import functional_call

ALIGNMENT = {"cpu": 64, "cuda": 256}
"""Tensor alignment, in bytes, that PyTorch's allocators guarantee. An operator copies an unaligned view before it
launches the kernel.
"""
try:
    _BELOW_AUTOGRAD = torch._C._after_autograd_keyset
    # Plain tensors have these dispatch keys. Other keys belong to subclasses, modes and tracers, which need the
    # dispatcher.
    _PLAIN_KEYS = (torch._C.DispatchKey.CPU, torch._C.DispatchKey.CUDA)
    _any_requires_grad = torch._C._any_requires_grad
    _without_autograd = torch._C._AutoDispatchBelowAutograd
    _bits = torch._C.DispatchKeySet.raw_repr
    _first_key = torch._C.DispatchKeySet.highestPriorityTypeId
    _redispatch = torch._ops.OpOverload.redispatch
    DISPATCHES_ONCE = True
except AttributeError:
    DISPATCHES_ONCE = False
try:
    _current_gpu = torch._C._cuda_getDevice
    _current_stream = torch._C._cuda_getCurrentRawStream  # Code from torch.compile calls this, too.
except AttributeError:  # PyTorch without CUDA lacks these names, too.
    _current_gpu = torch.cuda.current_device

    def _current_stream(index: int) -> int:
        return int(torch.cuda.current_stream(index).cuda_stream)


try:
    from torch.utils._pytree import tree_leaves as _leaves
except ImportError:

    def _leaves(tree: Any) -> list[Any]:
        if isinstance(tree, dict):
            tree = tuple(tree.values())
        return [leaf for one in tree for leaf in _leaves(one)] if isinstance(tree, list | tuple) else [tree]


_LIBRARIES: dict[str, torch.library.Library] = {}
"""PyTorch's operator libraries, one per package. Python must not free them."""


class TensorInfo(NamedTuple):
    """A tensor of the kernel. ``key`` is the name of the input, parameter or buffer in the reference."""

    name: str
    key: str
    dtype: torch.dtype
    shape: tuple[int, ...]


class Target(NamedTuple):
    """The device that the library was built for: "cuda" with a compute capability, or "cpu" with the processor's
    features.
    """

    device: str
    capability: tuple[int, int] = (0, 0)
    features: frozenset[str] = frozenset()

    def mismatch(self, index: int) -> str:
        """Return why the kernel cannot run on GPU ``index`` (-1: the CPU); "" if it can."""
        if self.device == "cuda":
            found = torch.cuda.get_device_capability(index)
            return (
                "" if found == self.capability else f"GPU {index} has compute capability {found}, not {self.capability}"
            )
        missing = sorted(self.features - _features())
        return f"this processor lacks {', '.join(missing)}" if missing else ""


class Operator:
    """A kernel behind ``torch.ops.PACKAGE.NAME``, which takes the tensors ``inputs`` and then ``weights``.

    ``library`` is the built kernel. ``reference`` is the module that defines ``Model``. ``constants`` are the numeric
    arguments of ``forward``. ``backward`` is the operator that computes the gradients from the outputs' gradients and
    this operator's tensors.
    """

    def __init__(
        self,
        package: str,
        name: str,
        *,
        library: Path,
        target: Target,
        inputs: Sequence[TensorInfo],
        weights: Sequence[TensorInfo],
        outputs: Sequence[TensorInfo],
        constants: dict[str, Any],
        reference: ModuleType,
        backward: Operator | None = None,
    ) -> None:
        self.name = f"{package}::{name}"
        self.tensors = (*inputs, *weights)
        self.outputs = tuple(outputs)
        self._inputs, self._constants = len(inputs), constants
        self._path, self._target = library, target
        self._reference, self._backward = reference, backward
        self._skeleton: nn.Module | None = None
        self._entry: Any = None
        self._last_error: Any = None
        self._workspace = 0
        self._alignment = ALIGNMENT[target.device]
        self._mismatches: dict[int, str] = {}
        self._plain: dict[int, bool] = {}
        self._define(package, name)
        self._overload = getattr(getattr(torch.ops, package), name).default

    def _define(self, package: str, name: str) -> None:
        if package not in _LIBRARIES:
            _LIBRARIES[package] = torch.library.Library(package, "DEF")
        library = _LIBRARIES[package]
        arguments = ", ".join(f"Tensor {one.name}" for one in self.tensors)
        returns = "Tensor" if len(self.outputs) == 1 else f"({', '.join('Tensor' for _ in self.outputs)})"
        library.define(f"{name}({arguments}) -> {returns}", tags=(torch.Tag.pt2_compliant_tag,))
        for key in ("CPU", "CUDA"):
            library.impl(name, self._run, key)
        torch.library.register_fake(self.name, self._fake, lib=library)
        if DISPATCHES_ONCE:
            library.impl(name, self._dispatch, "Autograd", with_keyset=True)
            return
        torch.library.register_autograd(
            self.name,
            lambda ctx, *gradients: self.gradients(gradients, ctx.saved_tensors),
            setup_context=lambda ctx, inputs, output: self.save(ctx, inputs),
            lib=library,
        )

    # Forward

    def _dispatch(self, keyset: Any, *tensors: torch.Tensor) -> Any:
        """Run the operator, and record the call for autograd if a tensor requires gradients.

        ``torch.library.register_autograd`` would dispatch a second time, which takes several microseconds.
        """
        if torch.is_grad_enabled() and _any_requires_grad(*tensors):
            return _Differentiable.apply(self, keyset, *tensors)
        keys = _bits(keyset)
        plain = self._plain.get(keys)
        if plain is None:
            plain = self._plain[keys] = _first_key(keyset & _BELOW_AUTOGRAD) in _PLAIN_KEYS
        return self._run(*tensors) if plain else self.below_autograd(keyset, tensors)

    def below_autograd(self, keyset: Any, tensors: Sequence[torch.Tensor]) -> Any:
        """Let PyTorch call the next implementation, such as that of a tensor subclass."""
        with _without_autograd():
            return _redispatch(self._overload, keyset & _BELOW_AUTOGRAD, *tensors)

    def _run(self, *tensors: torch.Tensor) -> Any:
        index = tensors[0].get_device()  # -1: the CPU
        if self._fits(tensors, index) and not self._mismatch(index):
            return self._launch(tensors, index)
        return _one_or_all(_fresh(self._refer(tensors), tensors))

    def _fits(self, tensors: Sequence[torch.Tensor], index: int) -> bool:
        if (index < 0) != (self._target.device == "cpu"):
            return False
        for tensor, known in zip(tensors, self.tensors, strict=True):
            if tensor.shape != known.shape or tensor.dtype is not known.dtype or tensor.get_device() != index:
                return False
        return True

    def _mismatch(self, index: int) -> str:
        """Return why the kernel cannot run on the device; "" if it can. Warn once per device."""
        found = self._mismatches.get(index)
        if found is None:
            found = self._mismatches[index] = self._target.mismatch(index)
            if found:
                warnings.warn(
                    f"{self.name}: {found}, so this operator runs the reference instead of the kernel", stacklevel=3
                )
        return found

    def _launch(self, tensors: Sequence[torch.Tensor], index: int) -> Any:
        if self._entry is None:
            self._load()
        first, alignment = tensors[0], self._alignment
        arguments: list[int | None] = []
        kept = []  # Copies and the workspace must exist until the kernel has been launched.
        for tensor in tensors:
            given = tensor.contiguous()
            address = given.data_ptr()
            if address % alignment:
                given = given.clone()
                address = given.data_ptr()
            kept.append(given)
            arguments.append(address)
        made = [first.new_empty(one.shape, dtype=one.dtype) for one in self.outputs]
        arguments += [one.data_ptr() for one in made]
        if self._workspace:
            kept.append(first.new_empty(self._workspace, dtype=torch.uint8))
            arguments.append(kept[-1].data_ptr())
        else:
            arguments.append(None)
        status = self._entry(*arguments) if index < 0 else self._launch_on_gpu(arguments, index)
        if status:
            raise RuntimeError(f"{self.name}: the kernel failed with status {status}")
        return made[0] if len(made) == 1 else tuple(made)

    def _launch_on_gpu(self, arguments: Sequence[int | None], index: int) -> int:
        """Launch the kernel on PyTorch's current stream of GPU ``index``. Return the status."""
        if _current_gpu() != index:
            with torch.cuda.device(index):
                return self._launch_on_gpu(arguments, index)
        status = self._entry(*arguments, _current_stream(index))
        return int(status or self._last_error())

    def _load(self) -> None:
        library = ctypes.CDLL(str(self._path))
        count = len(self.tensors) + len(self.outputs) + 1 + (self._target.device == "cuda")
        entry = library.launch
        entry.restype, entry.argtypes = ctypes.c_int, [ctypes.c_void_p] * count
        if hasattr(library, "workspace_bytes"):
            library.workspace_bytes.restype = ctypes.c_size_t
            self._workspace = int(library.workspace_bytes())
        if self._target.device == "cuda":
            self._last_error = library.kernel_tui_last_error
        self._entry = entry

    # Reference

    def _refer(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Run the reference model with these tensors as inputs and weights."""
        if self._skeleton is None:
            self._skeleton = _skeleton(self._reference)
        keyed = [(known.key, tensor) for known, tensor in zip(self.tensors, tensors, strict=True)]
        inputs, weights = dict(keyed[: self._inputs]), dict(keyed[self._inputs :])
        result = functional_call(self._skeleton, weights, (), {**inputs, **self._constants})
        return [leaf for leaf in _leaves(result) if isinstance(leaf, torch.Tensor)]

    def _fake(self, *tensors: torch.Tensor) -> Any:
        """Return uninitialized outputs. If the inputs' sizes are unknown or differ from the kernel's, the reference
        determines the outputs' sizes.
        """
        known = all(
            all(type(size) is int for size in tensor.shape) and tensor.shape == one.shape and tensor.dtype == one.dtype
            for tensor, one in zip(tensors, self.tensors, strict=True)
        )
        device = tensors[0].device
        if known:
            return _one_or_all([torch.empty(one.shape, dtype=one.dtype, device=device) for one in self.outputs])
        found = self._refer(tensors)
        return _one_or_all([torch.empty(one.shape, dtype=one.dtype, device=device) for one in found])

    # Gradients

    @property
    def has_gradients(self) -> bool:
        return self._backward is not None

    def save(self, ctx: Any, tensors: Sequence[torch.Tensor]) -> None:
        """Keep the tensors that ``gradients`` will need."""
        if self.has_gradients:
            ctx.save_for_backward(*tensors)

    def gradients(self, gradients: Sequence[torch.Tensor], tensors: Sequence[torch.Tensor]) -> tuple[Any, ...]:
        """Return the gradients of ``tensors``; None for integer tensors. Raises ``RuntimeError`` if there is no
        backward kernel.
        """
        if self._backward is None:
            raise RuntimeError(
                f"{self.name} has no backward kernel, so it cannot compute gradients. Call it under torch.no_grad(), "
                f"or train with {self._reference.__name__}.Model."
            )
        found = self._backward(*gradients, *tensors)
        left = iter(found if isinstance(found, tuple | list) else (found,))
        return tuple(next(left) if one.dtype.is_floating_point else None for one in self.tensors)

    def __call__(self, *tensors: torch.Tensor) -> Any:
        return self._overload(*tensors)


class _Differentiable(torch.autograd.Function):  # type: ignore[misc]
    """An operator call that autograd records."""

    @staticmethod
    def forward(ctx: Any, operator: Operator, keyset: Any, *tensors: torch.Tensor) -> Any:
        ctx.operator = operator
        operator.save(ctx, tensors)
        return operator.below_autograd(keyset, tensors)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        return (None, None, *ctx.operator.gradients(gradients, ctx.saved_tensors))


def same_arguments(given: Sequence[Any], built: Sequence[Any]) -> bool:
    """Return whether the reference was created with the constructor arguments that the kernel was compiled for."""
    plain = (bool, int, float, str, type(None), list, tuple)
    return len(given) == len(built) and all(
        isinstance(one, plain) and type(one) is type(other) and one == other
        for one, other in zip(given, built, strict=True)
    )


def _skeleton(reference: ModuleType) -> nn.Module:
    """Create the reference model, if possible without allocating its weights, because each call supplies them."""
    arguments = list(getattr(reference, "get_init_inputs", list)())
    try:
        with torch.device("meta"):
            model = reference.Model(*arguments)
    except (RuntimeError, NotImplementedError):  # The constructor reads a tensor's values.
        with torch.random.fork_rng(devices=[]):
            model = reference.Model(*arguments)
    for module in model.modules():  # Plain tensors are arguments of the operator, too, so make them buffers.
        for name, value in list(vars(module).items()):
            if isinstance(value, torch.Tensor):
                delattr(module, name)
                module.register_buffer(name, value, persistent=False)
    return model


def _fresh(results: Sequence[torch.Tensor], tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return contiguous results that share no memory with the arguments, as PyTorch requires of an operator."""
    taken = {tensor.untyped_storage().data_ptr() for tensor in tensors}
    made = []
    for one in results:
        result = one.detach().contiguous()
        if result.untyped_storage().data_ptr() in taken:
            result = result.clone()
        taken.add(result.untyped_storage().data_ptr())
        made.append(result)
    return made


def _one_or_all(results: Sequence[torch.Tensor]) -> Any:
    return results[0] if len(results) == 1 else tuple(results)


def _features() -> frozenset[str]:
    """Return the processor's features, as the Linux kernel names them."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return frozenset()
    return frozenset(
        next((line.partition(":")[2] for line in lines if line.startswith(("flags", "Features"))), "").split()
    )
