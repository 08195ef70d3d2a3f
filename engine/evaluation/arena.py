"""The buffers that judge and runner share: inputs, weights and outputs, each between guard zones.

On the CPU the arena is a memfd, on a GPU it is device memory exported by descriptor. It holds *slots*, each a full set
of buffers: two or more, so that a kernel never sees the same pointers twice in a row. The judge holds everything else
(reference, expected outputs) in memory of its own.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence
from typing import Protocol

import torch

from engine.evaluation.runner import cuda
from engine.evaluation.shared_memory import shared_memory
from engine.problem.spec import TensorSpec

GUARD_BYTES = 4096
_ALIGNMENT = 4096
_GUARD_WORD = -1
POISONS = (-65538, 0x7FFD7FFD)
"""Two 32-bit words that are NaN in fp16, bf16, fp32 and fp64 alike: 0xFFFEFFFE and 0x7FFD7FFD. No byte of them is a
boolean, and they differ in every byte."""


class _Memory(Protocol):
    descriptor: int
    size: int
    bytes: torch.Tensor

    def close(self) -> None: ...


class _HostMemory:
    def __init__(self, nbytes: int) -> None:
        self.size = -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
        self.descriptor, mapped = shared_memory("arena", self.size)
        self.bytes = torch.frombuffer(mapped, dtype=torch.uint8)  # which keeps it mapped

    def close(self) -> None:
        del self.bytes
        os.close(self.descriptor)


class _DeviceMemory:
    def __init__(self, nbytes: int) -> None:
        torch.cuda.init()
        self._driver = cuda.Driver()
        self._address, self.descriptor, self.size = self._driver.export_memory(nbytes)
        self.__cuda_array_interface__ = {
            "shape": (self.size,),
            "typestr": "|u1",
            "data": (self._address, False),
            "version": 3,
            "strides": None,
        }
        self.bytes = torch.as_tensor(self, device="cuda")

    def close(self) -> None:
        del self.bytes
        torch.cuda.synchronize()
        self._driver.unmap(self._address, self.size)
        os.close(self.descriptor)


class Slot:
    """One full set of buffers: ``tensors`` in the order of the kernel's arguments, views of the arena.

    ``results`` is what a kernel must get right: the outputs, then the buffers that the model mutates.
    """

    def __init__(self, memory: torch.Tensor, offsets: Sequence[int], specs: Sequence[TensorSpec]) -> None:
        self.offsets = list(offsets)
        self.filled = False
        """Whether inputs and weights have been loaded since another kernel was here."""
        self.specs = tuple(specs)
        self.tensors = [
            memory[offset : offset + spec.nbytes].view(getattr(torch, spec.dtype)).view(spec.shape)
            for offset, spec in zip(offsets, specs, strict=True)
        ]
        self.inputs = self._of("input")
        self.weights = self._of("parameter", "buffer")  # in the model's order, not one role after the other
        self.outputs = self._of("output")
        mutated = [tensor for tensor, spec in zip(self.tensors, self.specs, strict=True) if spec.mutated]
        self.results = self.outputs + mutated
        kept = zip(self.tensors, self.specs, strict=True)
        self.unwritable = [tensor for tensor, spec in kept if spec.role != "output" and not spec.mutated]
        self.result_names = [spec.name for spec in self.specs if spec.role == "output"]
        self.result_names += [spec.name for spec in self.specs if spec.mutated]
        self._words = [_words(memory, offset, spec.nbytes) for offset, spec in zip(offsets, specs, strict=True)]
        self._tails = [_tail(memory, offset, spec.nbytes) for offset, spec in zip(offsets, specs, strict=True)]
        self._guards = _guards(memory, offsets, specs)
        for _, guard in self._guards:
            guard.fill_(255)

    def _of(self, *roles: str) -> list[torch.Tensor]:
        return [tensor for tensor, spec in zip(self.tensors, self.specs, strict=True) if spec.role in roles]

    def poison(self, which: int) -> None:
        """Fill the outputs with one of the two NaN words."""
        for words, tail, spec in zip(self._words, self._tails, self.specs, strict=True):
            if spec.role == "output":
                words.fill_(POISONS[which])
                if tail.numel():
                    tail.copy_(_tail_poison(which, tail))

    def forget(self) -> None:
        """Nothing of an earlier kernel is left in the buffers: poison everywhere, whole guard zones."""
        self.filled = False
        for words, tail in zip(self._words, self._tails, strict=True):
            words.fill_(POISONS[0])
            tail.zero_()
        self.poison(0)
        for _, guard in self._guards:
            guard.fill_(255)

    def unwritten(self, which: int) -> str | None:
        """What of the outputs still holds the poison: a sentence, or None."""
        for words, tail, spec in zip(self._words, self._tails, self.specs, strict=True):
            if spec.role != "output":
                continue
            left = words == POISONS[which]
            count = int(left.sum()) * 4 * spec.numel // max(spec.nbytes, 1)
            first = int(left.nonzero()[0]) * 4 * spec.numel // max(spec.nbytes, 1) if count else None
            if tail.numel() and bool((tail == _tail_poison(which, tail)).all()):
                size = spec.nbytes // spec.numel
                count += tail.numel() // size
                first = words.numel() * 4 // size if first is None else first
            if count:
                elements = f"{count:,} of {spec.numel:,} elements of {spec.name}"
                return f"{elements} were never written, the first at index {first:,}"
        return None

    def damaged_guard(self) -> str | None:
        """The buffer beside which something was written, as a sentence, or None."""
        if bool((torch.cat([guard for _, guard in self._guards]) == 255).all()):
            return None
        for place, guard in self._guards:
            if not bool((guard == 255).all()):
                guard.fill_(255)
                return f"wrote {place}"
        return None


class Arena:
    """Shared buffers for one problem on one device ("cpu" or "cuda").

    ``slots`` has at least two entries, or one where memory is short. Raises ``MemoryError`` or the driver's error where
    there is no room.
    """

    def __init__(self, specs: Sequence[TensorSpec], kind: str, slots: int = 2) -> None:
        layout, end = [], GUARD_BYTES
        for _ in range(slots):
            offsets = []
            for spec in specs:
                offsets.append(end)
                end = -(-(end + spec.nbytes) // _ALIGNMENT) * _ALIGNMENT + GUARD_BYTES
            layout.append(offsets)
        self._memory: _Memory = _DeviceMemory(end) if kind == "cuda" else _HostMemory(end)
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
        """Give the memory back. The slots' tensors must not be used after it."""
        self.slots = []
        self._memory.close()


def _words(memory: torch.Tensor, offset: int, nbytes: int) -> torch.Tensor:
    """The 32-bit words of a buffer; its last 1 to 3 bytes are the tail."""
    return memory[offset : offset + nbytes // 4 * 4].view(torch.int32)


def _tail(memory: torch.Tensor, offset: int, nbytes: int) -> torch.Tensor:
    return memory[offset + nbytes // 4 * 4 : offset + nbytes]


def _tail_poison(which: int, tail: torch.Tensor) -> torch.Tensor:
    pattern = torch.tensor([POISONS[which]], dtype=torch.int32).view(torch.uint8)
    return pattern[: tail.numel()].to(tail.device)


def _guards(
    memory: torch.Tensor, offsets: Sequence[int], specs: Sequence[TensorSpec]
) -> list[tuple[str, torch.Tensor]]:
    """All bytes between the buffers, each half of a gap named after its neighbour; also those at both ends."""
    guards = []
    for offset, spec in zip(offsets, specs, strict=True):
        end = offset + spec.nbytes
        after = -(-end // _ALIGNMENT) * _ALIGNMENT + GUARD_BYTES
        first = 0 if offset == GUARD_BYTES else offset - GUARD_BYTES // 2
        last = after - GUARD_BYTES // 2 if after < memory.numel() else memory.numel()
        guards.append((f"before the start of {spec.name}", memory[first:offset]))
        guards.append((f"past the end of {spec.name}", memory[end:last]))
    return guards
