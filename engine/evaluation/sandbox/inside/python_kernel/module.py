"""Run a ``.py`` kernel in its runner: build ``ModelNew``, and call it on the shared buffers. Imports torch.

Each call receives the inputs, and the weights if the state dicts match, as tensors in the judge's memory. The runner
times only ``forward``. The judge reads the results while this process is stopped. On a GPU, or if the judge may not
read this process's memory, this process copies the results after the clock has stopped.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import pickle
import select
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import nn
from torch.utils import _pytree as pytree

from engine.evaluation.sandbox.arena import Buffers
from engine.evaluation.sandbox.inside import cuda, wire
from engine.evaluation.sandbox.inside.backend import make
from engine.evaluation.sandbox.inside.kernel import Kernel, NotLoaded
from engine.evaluation.sandbox.inside.python_kernel import extensions, operators
from engine.evaluation.sandbox.inside.python_kernel.order import InputPlaceholder, ModuleOrder
from engine.problem.model import named_weights, output_leaves
from engine.problem.spec import TensorSpec
from engine.system.memory import keep_freed_memory

if TYPE_CHECKING:
    import socket

    from engine.evaluation.sandbox.inside.backend import Backend, Call
    from engine.evaluation.sandbox.inside.kernel import Message

Weights = Literal["none", "state_dict", "absent", "replay"]
"""The source of a kernel's weights.

``none``: neither the kernel nor the reference has weights.
``state_dict``: the kernel's weights are in the judge's buffers.
``absent``: only the reference has weights.
``replay``: the kernel has its own weights, initialized from the same seed as the reference's weights.
"""

# Save these functions before the module is loaded, because the module may replace anything.
_TENSOR, _PARAMETER, _NO_GRAD, _SEED = torch.Tensor, nn.Parameter, torch.no_grad, torch.manual_seed
_GRADIENTS = torch.set_grad_enabled
_CLOCK = time.perf_counter
_COPY, _IS_CONTIGUOUS, _CONTIGUOUS = torch.Tensor.copy_, torch.Tensor.is_contiguous, torch.Tensor.contiguous


class WrongOutput(Exception):
    """A result of ``forward`` that does not match the problem's outputs; the message describes the difference."""


class Model(Kernel):
    """A kernel in the form of a ``ModelNew`` class, as in KernelBench.

    The judge passes a pickled :class:`ModuleOrder`.
    """

    default_stream = True

    def prepare(self) -> None:
        if self.kind == "cuda":
            torch.cuda.init()
        else:
            keep_freed_memory()

    def clock(self) -> Callable[[], float]:
        return _CLOCK

    def load(self, backend: Backend, kernel: int, base: int, order: Message) -> Message:
        with os.fdopen(kernel, "rb") as file:
            mine: ModuleOrder = pickle.load(file)
        self._path, self._looked_up = mine.path, operators.LookedUp()
        torch.set_num_threads(mine.threads)
        _set_environment(mine, order["compilers"])
        size = order["arena_bytes"]
        if self.kind == "cuda":
            memory = torch.as_tensor(cuda.device_bytes(base, size), device="cuda")
        else:
            memory = torch.frombuffer((ctypes.c_ubyte * size).from_address(base), dtype=torch.uint8)
        self._looked_up.watch()
        self._outputs, self._strides = [one for one in mine.tensors if one.role == "output"], mine.strides
        self._input_specs = [one for one in mine.tensors if one.role == "input"]
        self._weight_specs = [one for one in mine.tensors if one.role in ("parameter", "buffer")]
        self._buffers = [Buffers(memory, offsets, mine.tensors) for offsets in order["slots"]]
        self._left: list[torch.Tensor] = []
        self._left_addresses: set[int] = set()
        tensors = [tensor for one in self._buffers for tensor in (*one.inputs, *one.weights, *one.outputs)]
        self._judges_addresses = {tensor.data_ptr() for tensor in tensors}
        self._model = self._build(mine, memory.device)
        self._own = {name: tensor for name, tensor, _ in named_weights(self._model)}
        self._weights = self._match(mine)
        self._mutated = self._find_mutated() if self._weights == "state_dict" else []
        self._arguments = [
            pytree.tree_map(
                lambda leaf, b=buffers: b.inputs[leaf.index] if isinstance(leaf, InputPlaceholder) else leaf,
                mine.arguments,
            )
            for buffers in self._buffers
        ]
        backend.synchronize()
        return {"weights": self._weights}

    def _build(self, order: ModuleOrder, device: torch.device) -> nn.Module:
        try:
            spec = importlib.util.spec_from_file_location("kernel", order.path)
            assert spec is not None and spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            sys.modules["kernel"] = module
            spec.loader.exec_module(module)
            made = getattr(module, "ModelNew", None)
            if made is None:
                raise NotLoaded("the module does not define ModelNew: give the kernel's class this name")
            with _NO_GRAD():
                _SEED(order.seed)
                model = made(*order.init_arguments)
                if not isinstance(model, nn.Module):
                    raise NotLoaded(f"ModelNew creates a {type(model).__name__}: derive it from torch.nn.Module")
                return model.to(device)
        except NotLoaded:
            raise
        except Exception as error:
            raise NotLoaded(self.describe(error)) from error

    def _match(self, order: ModuleOrder) -> Weights:
        """Match the weights as strictly as ``load_state_dict``: every name, shape and dtype must agree."""
        wanted = {spec.source_name: spec for spec in self._weight_specs}
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

    def _find_mutated(self) -> list[tuple[int, dict[str, Any], str, torch.Tensor]]:
        """Return each weight that the reference writes: its index, the dict that holds it, its name there, and its
        tensor.

        The search takes milliseconds for models with hundreds of weights, so calls do not repeat it.
        """
        found = []
        for index, spec in enumerate(self._weight_specs):
            if spec.mutated and (own := self._own.get(spec.source_name)) is not None:
                path, _, name = spec.source_name.rpartition(".")
                try:
                    owner = self._model.get_submodule(path)
                except AttributeError:  # A state dict may use names that are not module paths.
                    continue
                holder = next((one for one in (owner._buffers, owner._parameters) if name in one), None)
                if holder is not None:
                    found.append((index, holder, name, own))
        return found

    def begin(self, seed: int | None) -> None:
        _GRADIENTS(False)
        if seed is not None:
            _SEED(seed)

    def bind(self, slots: Sequence[int]) -> Iterator[tuple[int, Sequence[Call]]]:
        """Bind consecutive calls on one slot together, because the judge reads only the last call's outputs."""
        for slot, calls in groupby(slots):
            if self._weights == "state_dict":
                for spec, stored in zip(self._weight_specs, self._buffers[slot].weights, strict=True):
                    if spec.source_name in self._own:
                        self._own[spec.source_name].data = stored
            yield slot, [(self._forward, self._arguments[slot])] * len(list(calls))

    def _forward(self, *arguments: Any) -> list[Any]:
        return _written_out(self._model(*arguments), self._strides)

    def keep(self, slot: int, result: list[Any]) -> None:
        """Copy the results of ``forward`` into the outputs of ``slot``, in stream order.

        The copy does not wait for work on other streams. Threat: late-work. Raises ``WrongOutput``.
        """
        for leaf, target in zip(self._checked(result, slot), self._buffers[slot].outputs, strict=True):
            _COPY(target, leaf)
        self._keep_mutated(slot)

    def leave(self, slot: int, result: list[Any]) -> list[int]:
        """Leave the results in place for the judge to read. Return their addresses.

        A negative address marks an output that is permuted like the reference's output. Threat: late-work. Raises
        ``WrongOutput``.
        """
        leaves = self._checked(result, slot)
        addresses = {leaf.data_ptr() for leaf in leaves if leaf.numel()} - self._judges_addresses
        if addresses & self._left_addresses:
            raise WrongOutput("forward returned the same memory in two calls: allocate the outputs in each call")
        self._left += leaves
        self._left_addresses |= addresses
        self._keep_mutated(slot)
        return [leaf.data_ptr() if _IS_CONTIGUOUS(leaf) else -leaf.data_ptr() for leaf in leaves]

    def _checked(self, result: list[Any], slot: int) -> list[torch.Tensor]:
        """Return the tensors in the result of ``forward``. Raises ``WrongOutput`` if they do not match the problem's
        outputs.
        """
        # issubclass(type()) is safe; isinstance lets an object claim any class and run its own code.
        leaves = [leaf for leaf in result if issubclass(type(leaf), _TENSOR)]
        if len(leaves) != len(self._outputs):
            expected = f"the problem has {len(self._outputs)}: return the outputs of Model.forward"
            raise WrongOutput(f"forward returned {len(leaves)} tensors, but {expected}")
        for leaf, spec, target in zip(leaves, self._outputs, self._buffers[slot].outputs, strict=True):
            _check_output(leaf, spec, target.device)
        return leaves

    def _keep_mutated(self, slot: int) -> None:
        """If ``forward`` replaced buffers instead of updating them in place, copy the new buffers into the judge's
        buffers.
        """
        for index, holder, name, own in self._mutated:
            target, tensor = self._buffers[slot].weights[index], holder[name]
            if tensor is not None and tensor.data_ptr() != target.data_ptr() and tensor.shape == target.shape:
                _COPY(target, tensor)
                holder[name] = own  # The next call needs the bound buffer again.

    def carry_out(self, backend: Backend, order: Message, control: socket.socket) -> Message:
        """Execute an order. Python kernels have additional orders:

        ``profile``: report the code that runs in a call. ``repeat``: repeat calls until the judge has sampled the
        running code and sends a message. ``leave``: leave outputs in place and report their addresses. ``forget``:
        release the outputs that ``leave`` left in place.
        """
        if "forget" in order:
            self._left.clear()
            self._left_addresses.clear()
            return {}
        if "profile" in order or "repeat" in order:
            self.begin(order["seed"])
            (slot, calls), ran = next(self.bind(order["slots"])), None
            if "profile" in order:
                ran = operators.what_ran(lambda: make(calls), self.kind == "cuda")
            else:
                self._repeat(slot, calls, control)
            self._keep_mutated(slot)
            return {"ran": ran, "looked_up": self._looked_up.report()}
        if "leave" not in order:
            return super().carry_out(backend, order, control)
        left: list[int] = []
        return self.time(backend, order, lambda *last: left.extend(self.leave(*last))) | {"left": left}

    def _repeat(self, slot: int, calls: Sequence[Call], control: socket.socket) -> None:
        """Repeat ``calls`` until the judge sends a message.

        After each call, restore the inputs and weights that the model changes. Otherwise, a model that counts its calls
        could run past the end of a buffer.
        """
        buffers = self._buffers[slot]
        pairs = zip((*buffers.inputs, *buffers.weights), (*self._input_specs, *self._weight_specs), strict=True)
        kept = [(tensor.data_ptr(), tensor.clone()) for tensor, spec in pairs if spec.mutated]
        while True:
            make(calls)
            self._keep_mutated(slot)
            for address, before in kept:  # PyTorch's copies would count as library calls.
                ctypes.memmove(address, before.data_ptr(), before.nbytes)
            if select.select([control], [], [], 0)[0]:
                break
        wire.receive(control)

    def launches(self, backend: Backend, slot: int) -> list[Any]:
        """Return the GPU launches of one call. CUDA cannot capture PyTorch's default stream, so the method captures
        another stream.
        """
        stream = torch.cuda.Stream()
        try:
            with torch.cuda.stream(stream):
                self.call(slot)  # Fill this stream's memory pool, so that the captured call does not allocate memory.
                torch.cuda.synchronize()
                return backend.launches(lambda: self.call(slot), stream.cuda_stream)
        except Exception:  # CUDA cannot capture a call that waits for the device.
            return []

    def failure(self, error: Exception) -> Message:
        if isinstance(error, WrongOutput):
            return {"code": 1, "wrong": True, "error": str(error)}
        text = self.describe(error)
        return {"failed": "cuda", "text": text} if "CUDA error" in text else {"code": 1, "error": text}

    def describe(self, error: BaseException) -> str:
        """Describe ``error``, with the module's innermost line in the traceback."""
        path = self._path
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == path]
        if isinstance(error, SyntaxError) and error.filename == path:
            lines.append(error.lineno)
        where = f" (line {lines[-1]})" if lines else ""
        message = str(error.msg or "") if isinstance(error, SyntaxError) else str(error)
        text = " ".join(message.split())[:600]
        return f"{type(error).__name__}: {text}{where}" if text else f"{type(error).__name__}{where}"


def _written_out(result: Any, layouts: Sequence[tuple[int, ...] | None]) -> list[Any]:
    """Return the leaves of ``result``. Make each leaf contiguous unless it has the same strides as the reference's
    view.

    ``layouts``: strides of the reference's views. The kernel's time includes this step, because copying a view or
    unpacking a container is the kernel's work. Threat: late-work.
    """
    if type(result) is _TENSOR and result.layout is torch.strided and _IS_CONTIGUOUS(result):
        return [result]
    leaves = output_leaves(result)
    plain = [type(leaf) in (_TENSOR, _PARAMETER) and leaf.layout is torch.strided for leaf in leaves]
    right = iter(layouts)
    return [
        _CONTIGUOUS(leaf) if is_plain and leaf.stride() != next(right, None) else leaf
        for leaf, is_plain in zip(leaves, plain, strict=True)
    ]


def _fits(tensor: torch.Tensor, spec: TensorSpec) -> bool:
    return tuple(tensor.shape) == tuple(spec.shape) and str(tensor.dtype) == f"torch.{spec.dtype}"


def _check_output(leaf: torch.Tensor, spec: TensorSpec, device: torch.device) -> None:
    """Raise ``WrongOutput`` unless ``leaf`` is a plain, computed tensor on ``device`` that matches ``spec``.

    Other kinds of tensors could delay the computation of their values until the judge reads them. Threat: late-work.
    """
    kind = type(leaf)
    if kind is not _TENSOR and kind is not _PARAMETER:
        named = f"{kind.__module__}.{kind.__qualname__}"
        raise WrongOutput(f"{spec.name} is a {named}, not exactly a torch.Tensor: return a plain tensor")
    if leaf.device.type != device.type:
        raise WrongOutput(
            f"{spec.name} is on {leaf.device}, but the problem expects it on {device}: move the output to that "
            f"device in forward"
        )
    if leaf.layout is not torch.strided or leaf.is_conj() or leaf.is_neg() or torch._is_functional_tensor(leaf):
        raise WrongOutput(f"{spec.name} is not a plain strided tensor: return a computed, dense tensor")
    if (dtype := str(leaf.dtype).removeprefix("torch.")) != spec.dtype:
        raise WrongOutput(
            f"{spec.name} is {dtype}, but the problem's output is {spec.dtype}: convert the output in forward"
        )
    if tuple(leaf.shape) != tuple(spec.shape):
        wanted = f"but the problem's output has {tuple(spec.shape)}: return the reference's shape"
        raise WrongOutput(f"{spec.name} has shape {tuple(leaf.shape)}, {wanted}")
    if leaf.numel() and leaf.untyped_storage().data_ptr() == 0:
        raise WrongOutput(f"{spec.name} has no memory: return a tensor that contains values")


def _set_environment(order: ModuleOrder, compilers: bool) -> None:
    os.environ[extensions.DIRECTORY_VARIABLE] = order.extensions
    if compilers:
        own = os.path.dirname(sys.executable)  # noqa: PTH120
        os.environ |= {
            "PATH": f"{own}:/usr/local/cuda/bin:/usr/local/bin:/usr/bin:/bin",
            "HOME": order.cache,
            "TMPDIR": order.cache,
            "TRITON_CACHE_DIR": f"{order.cache}/triton",
            "TORCHINDUCTOR_CACHE_DIR": f"{order.cache}/inductor",
            "TORCHINDUCTOR_COMPILE_THREADS": "1",
        }
