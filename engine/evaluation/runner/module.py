"""A ``.py`` kernel in its runner: ``ModelNew`` on the shared buffers. Imports torch.

Each call gets the inputs (and, where the state dicts match, the weights) as tensors in the judge's memory. ``forward``
is timed. What it returns is read by the judge while this process stands still; on a GPU, and where the judge may not
read, it is copied into the judge's outputs after the clock has stopped.
"""

from __future__ import annotations

import ctypes
import importlib.util
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any, Literal

import torch
from torch import nn
from torch.utils import _pytree as pytree

from engine.evaluation.runner import cuda
from engine.evaluation.runner.order import BufferOrder, ModuleOrder, Slotted
from engine.problem.model import named_weights, output_leaves

Weights = Literal["none", "state_dict", "absent", "replay"]
"""Where the weights come from: there are none; the judge's buffers; nowhere, where only the reference has some; the
model's own, drawn as the reference's."""

# Taken before the module is loaded, which may replace anything.
_TENSOR, _PARAMETER, _NO_GRAD, _SEED = torch.Tensor, nn.Parameter, torch.no_grad, torch.manual_seed
_COPY, _CLOCK = torch.Tensor.copy_, time.perf_counter
_IS_CONTIGUOUS, _CONTIGUOUS = torch.Tensor.is_contiguous, torch.Tensor.contiguous


class ModuleError(Exception):
    """The module cannot be used as a kernel; the text says what and where."""


class Buffers:
    """One slot: tensors over the shared memory, by role."""

    def __init__(self, memory: torch.Tensor, offsets: Sequence[int], orders: Sequence[BufferOrder]) -> None:
        self.tensors = [_view(memory, offset, order) for offset, order in zip(offsets, orders, strict=True)]
        pairs = list(zip(self.tensors, orders, strict=True))
        self.inputs = [tensor for tensor, order in pairs if order.role == "input"]
        self.outputs = [tensor for tensor, order in pairs if order.role == "output"]
        weights = [(tensor, order) for tensor, order in pairs if order.role in ("parameter", "buffer")]
        self.weights = {order.source_name: tensor for tensor, order in weights}
        self.mutated = {order.source_name: tensor for tensor, order in weights if order.mutated}


def _view(memory: torch.Tensor, offset: int, order: BufferOrder) -> torch.Tensor:
    dtype: torch.dtype = getattr(torch, order.dtype)
    count = 1
    for extent in order.shape:
        count *= extent
    return memory[offset : offset + count * dtype.itemsize].view(dtype).view(order.shape)


def host_memory(address: int, size: int) -> torch.Tensor:
    """All of a CPU arena as bytes."""
    return torch.frombuffer((ctypes.c_ubyte * size).from_address(address), dtype=torch.uint8)


def device_memory(address: int, size: int) -> torch.Tensor:
    """All of a GPU arena as bytes, without copying."""

    class Exposed:
        __cuda_array_interface__ = {  # noqa: RUF012
            "shape": (size,),
            "typestr": "|u1",
            "data": (address, False),
            "version": 3,
            "strides": None,
        }

    return torch.as_tensor(Exposed(), device="cuda")


class Model:
    """``ModelNew``, built as KernelBench builds it, on the slots of ``order``. Raises ``ModuleError``."""

    def __init__(self, order: ModuleOrder, memory: torch.Tensor) -> None:
        self._path = order.path
        self._buffers = [Buffers(memory, offsets, order.buffers) for offsets in order.slots]
        self._outputs = [buffer for buffer in order.buffers if buffer.role == "output"]
        self._left: list[torch.Tensor] = []
        self._model = self._build(order, memory.device)
        self._own = {name: tensor for name, tensor, _ in named_weights(self._model)}
        self.weights = self._match(order)
        self._arguments = [
            pytree.tree_map(
                lambda leaf, b=buffers: b.inputs[leaf.index] if isinstance(leaf, Slotted) else leaf,
                order.arguments,
            )
            for buffers in self._buffers
        ]

    def _build(self, order: ModuleOrder, device: torch.device) -> nn.Module:
        try:
            spec = importlib.util.spec_from_file_location("kernel", order.path)
            assert spec is not None and spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            sys.modules["kernel"] = module
            spec.loader.exec_module(module)
            made = getattr(module, "ModelNew", None)
            if made is None:
                raise ModuleError("defines no ModelNew")
            with _NO_GRAD():
                _SEED(order.seed)
                model = made(*order.init_arguments)
                if not isinstance(model, nn.Module):
                    raise ModuleError(f"ModelNew makes a {type(model).__name__}, not a torch.nn.Module")
                return model.to(device)
        except ModuleError:
            raise
        except Exception as error:
            raise ModuleError(self.describe(error)) from error

    def _match(self, order: ModuleOrder) -> Weights:
        """Strictly, as ``load_state_dict`` does: every name, shape and dtype, or none of them."""
        wanted = {buffer.source_name: buffer for buffer in order.buffers if buffer.role in ("parameter", "buffer")}
        saved = {name for name, tensor in self._model.state_dict(keep_vars=True).items() if torch.is_tensor(tensor)}
        mine = {name for name in self._own if name in saved}
        theirs = {name for name in wanted if name in order.saved}
        if not wanted and not mine:
            return "none"
        if theirs and not mine:
            return "absent"
        if mine != theirs or not all(_fits(self._own[name], wanted[name]) for name in mine):
            return "replay"
        for name in [name for name in self._own if name not in wanted or not _fits(self._own[name], wanted[name])]:
            del self._own[name]
        return "state_dict"

    def bind(self, slot: int) -> Callable[[], list[Any]]:
        """What calls ``forward`` on the inputs, and with the weights, of ``slot``, and takes apart what it returns."""
        if self.weights == "state_dict":
            stored = self._buffers[slot].weights
            for name, tensor in self._own.items():
                tensor.data = stored[name]
        model, arguments, layouts = self._model, self._arguments[slot], [order.strides for order in self._outputs]
        return lambda: _written_out(model(*arguments), layouts)

    def keep(self, slot: int, result: list[Any]) -> None:
        """Copy the leaves of what ``forward`` returned into the outputs of ``slot``.

        Raises ``ModuleError`` for what is no output.
        """
        for leaf, target in zip(self._checked(result, slot), self._buffers[slot].outputs, strict=True):
            _COPY(target, leaf)
        self._keep_mutated(slot)

    def leave(self, slot: int, result: list[Any]) -> list[int]:
        """Leave them where they are until :meth:`forget`: their addresses, the negative one where an output is not
        contiguous but permuted as the reference's is.

        Raises ``ModuleError`` for what is no output.
        """
        leaves = self._checked(result, slot)
        self._left += leaves
        self._keep_mutated(slot)
        return [leaf.data_ptr() if _IS_CONTIGUOUS(leaf) else -leaf.data_ptr() for leaf in leaves]

    def forget(self) -> None:
        """The judge has read what was left."""
        self._left.clear()

    def _checked(self, result: list[Any], slot: int) -> list[torch.Tensor]:
        """The tensors among what ``forward`` returned. Raises ``ModuleError`` where they are not the outputs."""
        # Not isinstance: an object may say of what class it is, and compute meanwhile.
        leaves = [leaf for leaf in result if issubclass(type(leaf), _TENSOR)]
        if len(leaves) != len(self._outputs):
            raise ModuleError(f"forward returned {len(leaves)} tensors, the problem has {len(self._outputs)}")
        for leaf, order, target in zip(leaves, self._outputs, self._buffers[slot].outputs, strict=True):
            _check_output(leaf, order, target.device)
        return leaves

    def _keep_mutated(self, slot: int) -> None:
        buffers = self._buffers[slot]
        if self.weights == "state_dict" and buffers.mutated:
            now = {name: tensor for name, tensor, _ in named_weights(self._model)}
            for name, target in buffers.mutated.items():
                tensor = now.get(name)
                if tensor is not None and tensor.data_ptr() != target.data_ptr() and tensor.shape == target.shape:
                    # It was replaced, not written in place: the next call wants the bound one again.
                    _COPY(target, tensor)
                    owner, _, attribute = name.rpartition(".")
                    self._model.get_submodule(owner)._buffers[attribute] = self._own[name]

    def describe(self, error: BaseException) -> str:
        """The error, and the innermost line of the module that it came through."""
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == self._path]
        if isinstance(error, SyntaxError) and error.filename == self._path:
            lines.append(error.lineno)
        where = f" (line {lines[-1]})" if lines else ""
        text = " ".join(str(error).split())[:600]
        return f"{type(error).__name__}: {text}{where}" if text else f"{type(error).__name__}{where}"


def _written_out(result: Any, layouts: Sequence[tuple[int, ...] | None]) -> list[Any]:
    """The leaves of ``result``, written out where one is a view that the reference's output is not: ``layouts`` has
    the strides of those. What is left to whoever copies them, or takes apart what holds them, is work of the kernel
    and belongs into its time."""
    if type(result) is _TENSOR and result.layout is torch.strided and _IS_CONTIGUOUS(result):
        return [result]
    leaves = output_leaves(result)
    plain = [type(leaf) in (_TENSOR, _PARAMETER) and leaf.layout is torch.strided for leaf in leaves]
    right = iter(layouts)
    return [
        _CONTIGUOUS(leaf) if is_plain and leaf.stride() != next(right, None) else leaf
        for leaf, is_plain in zip(leaves, plain, strict=True)
    ]


def _fits(tensor: torch.Tensor, order: BufferOrder) -> bool:
    return tuple(tensor.shape) == tuple(order.shape) and str(tensor.dtype) == f"torch.{order.dtype}"


def _check_output(leaf: torch.Tensor, order: BufferOrder, device: torch.device) -> None:
    """An output is exactly a ``torch.Tensor`` with its own, filled memory: nothing that computes when it is read."""
    kind = type(leaf)
    if kind is not _TENSOR and kind is not _PARAMETER:
        raise ModuleError(f"{order.name} is a {kind.__module__}.{kind.__qualname__}, not exactly a torch.Tensor")
    if leaf.device.type != device.type:
        raise ModuleError(f"{order.name} is on {leaf.device}, the problem's is on {device}")
    if leaf.layout is not torch.strided or leaf.is_conj() or leaf.is_neg() or torch._is_functional_tensor(leaf):
        raise ModuleError(f"{order.name} is no plain strided tensor")
    if str(leaf.dtype) != f"torch.{order.dtype}":
        raise ModuleError(f"{order.name} is {str(leaf.dtype).removeprefix('torch.')}, the problem's is {order.dtype}")
    if tuple(leaf.shape) != tuple(order.shape):
        raise ModuleError(f"{order.name} has shape {tuple(leaf.shape)}, the problem's has {tuple(order.shape)}")
    if leaf.numel() and leaf.untyped_storage().data_ptr() == 0:
        raise ModuleError(f"{order.name} has no memory")


class CpuModule:
    """A model on the CPU: the monotonic clock around each ``forward``."""

    def __init__(self, model: Model) -> None:
        self._model = model

    def run(self, slots: Sequence[int], flushes: int, seed: int | None, warm: int | None = None) -> list[float]:
        """One call after another, milliseconds of each. Of calls on the same slot the last one's outputs are kept."""
        return self._run(slots, seed, self._model.keep)

    def run_and_leave(self, slots: Sequence[int], seed: int | None) -> tuple[list[float], list[int]]:
        """The same, but that outputs are left where they are: with :meth:`Model.leave`'s addresses."""
        left: list[int] = []
        return self._run(slots, seed, lambda slot, result: left.extend(self._model.leave(slot, result))), left

    def _run(self, slots: Sequence[int], seed: int | None, take: Callable[[int, list[Any]], None]) -> list[float]:
        clock, times = _CLOCK, []
        if seed is not None:
            _SEED(seed)
        with _NO_GRAD():
            for slot, count in _runs(slots):
                forward = self._model.bind(slot)
                for _ in range(count):
                    start = clock()
                    result = forward()
                    times.append((clock() - start) * 1e3)
                take(slot, result)
        return times


class CudaModule:
    """A model on a GPU: events on the default stream, recorded through the driver and not through torch."""

    def __init__(self, model: Model, driver: cuda.Driver, stream: cuda.Stream, gate: cuda.Gate | None) -> None:
        self._model, self._driver, self._stream, self._gate = model, driver, stream, gate

    def run(self, slots: Sequence[int], flushes: int, seed: int | None, warm: int | None = None) -> list[float]:
        """``flushes``: evict the L2 cache so often before each call, one event pair a call; 0: one pair around all that
        are on the same slot. ``warm``: with a call on that slot before each, whose result is thrown away, and without
        a pause: while the judge had the processor, launches went cold, as the reference's did.

        Outputs are copied in the order of the stream, before anything waits: work on another stream that is not done
        by then does not count.
        """
        stream, times = self._stream, []
        if seed is not None:
            _SEED(seed)
        with _NO_GRAD():
            for slot, count in [(slot, 1) for slot in slots] if flushes else _runs(slots):
                if warm is not None:
                    self._model.bind(warm)()
                    if seed is not None:
                        _SEED(seed)
                forward = self._model.bind(slot)
                stream.flush(flushes)
                stream.start()
                for _ in range(count):
                    result = forward()
                stream.stop()
                self._model.keep(slot, result)
                self._driver.synchronize()
                times += [stream.elapsed_ms() / count] * count
        return times

    def run_behind_gate(
        self, slots: Sequence[int], number: int, seed: int | None, tell: Callable[[bool], None]
    ) -> None:
        """Queue calls that wait until the judge's gate is at ``number``, ``tell`` whether they are, wait for them.

        Outputs are copied in the order of the stream.
        """
        if self._gate is None:
            return tell(False)
        self._gate.hold(self._stream, number)
        if seed is not None:
            _SEED(seed)
        with _NO_GRAD():
            for slot in slots:
                self._model.keep(slot, self._model.bind(slot)())
        tell(True)
        return self._driver.synchronize()


def _runs(slots: Sequence[int]) -> list[tuple[int, int]]:
    """Each slot with how many calls on it follow each other."""
    return [(slot, len(list(calls))) for slot, calls in groupby(slots)]
