"""The arena: buffers that the judge and the runner share, for inputs, weights and outputs, each between redzones.

On a CPU, the arena is a memfd; on a GPU, the arena is exported device memory. The arena consists of *slots*, each a
full set of buffers. With two or more slots, a kernel does not see the same pointers twice in a row. The judge keeps the
reference and the expected outputs in its own memory. Threats: stale-output (poison), out-of-bounds (redzones), replay
(slots), escape (the judge clears buffers between kernels).
"""

from __future__ import annotations

import mmap
import os
import sys
from collections.abc import Sequence
from functools import cache

import torch

from engine.evaluation.judge_policy import POLICY
from engine.evaluation.sandbox.inside import cuda
from engine.evaluation.sandbox.shared_memory import shared_memory
from engine.problem.spec import TensorSpec

_SANDBOX = POLICY.sandbox


class _HostMemory:
    def __init__(self, nbytes: int) -> None:
        self.size = -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
        self.descriptor, mapped = shared_memory("arena", self.size)
        self.bytes = torch.frombuffer(mapped, dtype=torch.uint8)  # This tensor keeps the memory mapped.

    def close(self) -> None:
        del self.bytes
        os.close(self.descriptor)


class _DeviceMemory:
    def __init__(self, nbytes: int) -> None:
        torch.cuda.init()
        torch.cuda.empty_cache()  # PyTorch caches freed memory, so other processes could not use that memory.
        self._driver = cuda.Driver()
        self._address, self.descriptor, self.size = self._driver.export_memory(nbytes)
        self.bytes = torch.as_tensor(cuda.device_bytes(self._address, self.size), device="cuda")

    def close(self) -> None:
        del self.bytes
        torch.cuda.synchronize()
        self._driver.unmap(self._address, self.size)
        os.close(self.descriptor)


class Buffers:
    """One set of buffers: ``tensors`` in the order of the kernel's arguments, as views of ``memory`` at ``offsets``."""

    def __init__(self, memory: torch.Tensor, offsets: Sequence[int], specs: Sequence[TensorSpec]) -> None:
        self.offsets, self.specs = list(offsets), tuple(specs)
        self.tensors = [
            memory[offset : offset + spec.nbytes].view(getattr(torch, spec.dtype)).view(spec.shape)
            for offset, spec in zip(offsets, specs, strict=True)
        ]
        self.inputs = self._of("input")
        self.weights = self._of("parameter", "buffer")  # The model's order mixes parameters and buffers.
        self.outputs = self._of("output")

    def _of(self, *roles: str) -> list[torch.Tensor]:
        return [tensor for tensor, spec in zip(self.tensors, self.specs, strict=True) if spec.role in roles]


class Slot(Buffers):
    """Buffers between redzones, with the judge's poison in the outputs.

    ``results``: the tensors to compare: outputs, then buffers that the model mutates. ``filled``: whether the judge has
    loaded inputs and weights since the last kernel.
    """

    def __init__(self, memory: torch.Tensor, offsets: Sequence[int], specs: Sequence[TensorSpec]) -> None:
        super().__init__(memory, offsets, specs)
        self.filled = False
        pairs = list(zip(self.tensors, self.specs, strict=True))
        self.results = self.outputs + [tensor for tensor, spec in pairs if spec.mutated]
        self.result_names = [spec.name for spec in specs if spec.role == "output"]
        self.result_names += [spec.name for spec in specs if spec.mutated]
        self.unwritable = [tensor for tensor, spec in pairs if spec.role != "output" and not spec.mutated]
        self._words = [_words(tensor) for tensor in self.tensors]
        self._redzones = _redzones(memory, offsets, specs)
        self._restore_redzones()

    def _restore_redzones(self) -> None:
        for _, guard in self._redzones:
            guard.fill_(255)

    def poison(self, which: int) -> None:
        """Fill the outputs with one of the two NaN patterns. Threat: stale-output."""
        for (words, rest), tensor, spec in zip(self._words, self.tensors, self.specs, strict=True):
            if spec.role == "output":
                words.fill_(_pattern(which, words.itemsize, tensor.itemsize))
                if len(rest):
                    rest.fill_(_pattern(which, 1, 1))

    def forget(self) -> None:
        """Erase all data of an earlier kernel by poisoning every buffer and restoring the redzones. Threat: escape."""
        self.filled = False
        for (words, rest), tensor in zip(self._words, self.tensors, strict=True):
            words.fill_(_pattern(0, words.itemsize, tensor.itemsize))
            rest.zero_()
        self.poison(0)
        self._restore_redzones()

    def unwritten(self, which: int, expected: Sequence[torch.Tensor]) -> str | None:
        """Describe output elements that still contain the poison, or return None if there are none.

        ``expected``: the expected outputs. An 8-bit integer may equal the poison by chance. The method reports
        8-bit elements only if they are wrong and make up most of the wrong elements.
        """
        wanted = iter(expected)
        for (words, rest), tensor, spec in zip(self._words, self.tensors, self.specs, strict=True):
            if spec.role != "output":
                continue
            left, want = words == _pattern(which, words.itemsize, tensor.itemsize), next(wanted)
            if tensor.itemsize == 1:
                left = torch.cat([left.repeat_interleave(words.itemsize), rest == _pattern(which, 1, 1)])
            if tensor.dtype in (torch.int8, torch.uint8):
                wrong = (tensor != want).reshape(-1)
                left &= wrong
                left &= 2 * left.count_nonzero() > wrong.count_nonzero()
            if bool(left.any()):
                elements = f"{int(left.sum()):,} of {spec.numel:,} elements of {spec.name}"
                return f"the kernel left {elements} unwritten; the first has index {int(left.nonzero()[0]):,}"
        return None

    def damaged_redzone(self) -> str | None:
        """Describe a write before or after a buffer, or return None if there is none. Threat: out-of-bounds."""
        if bool((torch.cat([guard for _, guard in self._redzones]) == 255).all()):
            return None
        place = next(place for place, guard in self._redzones if not bool((guard == 255).all()))
        self._restore_redzones()
        return f"the kernel wrote {place}"


class Arena:
    """Shared buffers for one problem on one device ("cpu" or "cuda").

    ``slots`` has at least two entries, or one if memory is short. Raises ``MemoryError`` or the driver's error if
    memory runs out.
    """

    def __init__(self, specs: Sequence[TensorSpec], kind: str, slots: int = 2) -> None:
        layout, end = [], _SANDBOX.redzone_bytes
        for _ in range(slots):
            offsets = []
            for spec in specs:
                offsets.append(end)
                end = _after(end + spec.nbytes)
            layout.append(offsets)
        self._memory: _HostMemory | _DeviceMemory
        self._memory = _DeviceMemory(end) if kind == "cuda" else _HostMemory(end)
        self.slots = [Slot(self._memory.bytes, offsets, specs) for offsets in layout]

    @property
    def descriptor(self) -> int:
        return self._memory.descriptor

    @property
    def nbytes(self) -> int:
        return self._memory.size

    @property
    def offsets(self) -> list[list[int]]:
        return [slot.offsets for slot in self.slots]

    def close(self) -> None:
        """Release the arena's memory. Do not use the slots' tensors afterward."""
        self.slots = []
        self._memory.close()


def _after(end: int) -> int:
    """Return the offset in bytes of the buffer that follows a buffer ending at offset ``end``."""
    alignment = _SANDBOX.alignment_bytes
    return -(-end // alignment) * alignment + _SANDBOX.redzone_bytes


def _words(tensor: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a buffer as integers, with one-byte elements in pairs, and the last byte if that byte has no pair."""
    size, flat = max(tensor.itemsize, 2), tensor.view(-1).view(torch.uint8)
    end = tensor.nbytes // size * size
    return flat[:end].view(getattr(torch, f"int{8 * size}")), flat[end:]


@cache
def _pattern(which: int, size: int, itemsize: int) -> int:
    """Return the poison as an integer of ``size`` bytes, for elements of ``itemsize`` bytes.

    One-byte elements contain only the low byte. The integer is signed unless ``size`` is 1.
    """
    low = _SANDBOX.poisons[which] & 0xFF
    pattern = (bytes([low]) if itemsize == 1 else _SANDBOX.poisons[which].to_bytes(2, sys.byteorder)) * size
    return int.from_bytes(pattern[:size], sys.byteorder, signed=size > 1)


def _redzones(
    memory: torch.Tensor, offsets: Sequence[int], specs: Sequence[TensorSpec]
) -> list[tuple[str, torch.Tensor]]:
    """Return all bytes between and around the buffers. Each half of a gap has a description that names the adjacent
    buffer.
    """
    guards, size = [], _SANDBOX.redzone_bytes
    for offset, spec in zip(offsets, specs, strict=True):
        end = offset + spec.nbytes
        first = 0 if offset == size else offset - size // 2
        last = _after(end) - size // 2 if _after(end) < memory.numel() else memory.numel()
        guards.append((f"before the start of {spec.name}", memory[first:offset]))
        guards.append((f"past the end of {spec.name}", memory[end:last]))
    return guards
