"""Kernels as PyTorch operators. kernel-tui wrote this package; it needs PyTorch, but neither kernel-tui nor a compiler.

An operator runs its kernel if tensors and device are the ones that the kernel was built for. Otherwise it runs the
reference model, so every call has the reference's meaning.
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
from torch.utils import _pytree as pytree

ALIGNMENT = {"cpu": 64, "cuda": 256}
"""Bytes to which tensors must be aligned, as PyTorch's allocators do. An unaligned view is copied first."""
_LIBRARIES: dict[str, torch.library.Library] = {}
"""PyTorch's operator libraries, one per package. They must stay alive."""


class TensorInfo(NamedTuple):
    """A tensor of the kernel. ``key`` is the name in the reference: of an input, a parameter or a buffer."""

    name: str
    key: str
    dtype: torch.dtype
    shape: tuple[int, ...]


class Target(NamedTuple):
    """What the library was built for: "cuda" with a compute capability, or "cpu" with the processor's features."""

    device: str
    capability: tuple[int, int] = (0, 0)
    features: frozenset[str] = frozenset()

    def mismatch(self, index: int | None) -> str:
        """Return why the kernel cannot run on the device, or ""."""
        if self.device == "cuda":
            found = torch.cuda.get_device_capability(index)
            return (
                "" if found == self.capability else f"GPU {index} has compute capability {found}, not {self.capability}"
            )
        missing = sorted(self.features - _features())
        return f"this processor lacks {', '.join(missing)}" if missing else ""


class Operator:
    """A kernel behind ``torch.ops.PACKAGE.NAME``, for the tensors ``inputs`` and ``weights`` in this order.

    ``library`` is the built kernel, and ``reference`` the module that defines ``Model``. ``constants`` are arguments of
    ``forward`` that are numbers. ``backward`` is the operator that computes the gradients from the outputs' gradients
    and this operator's tensors.
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
        self._mismatches: dict[int | None, str] = {}
        self._define(package, name)

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
        torch.library.register_autograd(self.name, self._gradients, setup_context=self._save, lib=library)

    # Forward

    def _run(self, *tensors: torch.Tensor) -> Any:
        if self._fits(tensors) and not self._mismatch(tensors[0].device):
            return self._launch(tensors)
        return _one_or_all(_fresh(self._refer(tensors), tensors))

    def _fits(self, tensors: Sequence[torch.Tensor]) -> bool:
        device = tensors[0].device
        return device.type == self._target.device and all(
            tensor.shape == known.shape and tensor.dtype == known.dtype and tensor.device == device
            for tensor, known in zip(tensors, self.tensors, strict=True)
        )

    def _mismatch(self, device: torch.device) -> str:
        """Return why the kernel cannot run on the device, or "". Warn once per device."""
        found = self._mismatches.get(device.index)
        if found is None:
            found = self._mismatches[device.index] = self._target.mismatch(device.index)
            if found:
                warnings.warn(f"{self.name}: {found}; it runs the reference instead of the kernel", stacklevel=3)
        return found

    def _launch(self, tensors: Sequence[torch.Tensor]) -> Any:
        if self._entry is None:
            self._load()
        device = tensors[0].device
        given = [_aligned(tensor.contiguous(), ALIGNMENT[device.type]) for tensor in tensors]
        made = [torch.empty(one.shape, dtype=one.dtype, device=device) for one in self.outputs]
        scratch = torch.empty(self._workspace, dtype=torch.uint8, device=device) if self._workspace else None
        arguments = [one.data_ptr() for one in (*given, *made)]
        arguments.append(scratch.data_ptr() if scratch is not None else None)
        if device.type == "cpu":
            status = self._entry(*arguments)
        else:
            with torch.cuda.device(device):
                status = self._entry(*arguments, torch.cuda.current_stream(device).cuda_stream)
                status = status or self._last_error()
        if status:
            raise RuntimeError(f"{self.name}: the kernel returned status {status}")
        return _one_or_all(made)

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
        return [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor)]

    def _fake(self, *tensors: torch.Tensor) -> Any:
        """Return empty outputs. Sizes that are not the kernel's, or not known yet, come from the reference."""
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

    def _save(self, ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        if self._backward is not None:
            ctx.save_for_backward(*inputs)

    def _gradients(self, ctx: Any, *gradients: torch.Tensor) -> Any:
        if self._backward is None:
            raise RuntimeError(
                f"{self.name} has no backward kernel, so it has no gradients. Call it under torch.no_grad(), or train "
                f"with {self._reference.__name__}.Model."
            )
        found = self._backward(*gradients, *ctx.saved_tensors)
        left = iter(found if isinstance(found, tuple | list) else (found,))
        return tuple(next(left) if one.dtype.is_floating_point else None for one in self.tensors)

    def __call__(self, *tensors: torch.Tensor) -> Any:
        package, _, name = self.name.partition("::")
        return getattr(getattr(torch.ops, package), name)(*tensors)


def same_arguments(given: Sequence[Any], built: Sequence[Any]) -> bool:
    """Return whether the reference was created with the constructor arguments that the kernel was compiled for."""
    plain = (bool, int, float, str, type(None), list, tuple)
    return len(given) == len(built) and all(
        isinstance(one, plain) and type(one) is type(other) and one == other
        for one, other in zip(given, built, strict=True)
    )


def _skeleton(reference: ModuleType) -> nn.Module:
    """Create the reference model without memory for its weights, which each call supplies."""
    arguments = list(getattr(reference, "get_init_inputs", list)())
    try:
        with torch.device("meta"):
            model = reference.Model(*arguments)
    except (RuntimeError, NotImplementedError):  # the constructor reads values of a tensor
        with torch.random.fork_rng(devices=[]):
            model = reference.Model(*arguments)
    for module in model.modules():  # plain tensors are arguments of the operator too, so functional_call must see them
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


def _aligned(tensor: torch.Tensor, alignment: int) -> torch.Tensor:
    return tensor if tensor.data_ptr() % alignment == 0 else tensor.clone()


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
