"""A plan: the groups of a problem, each group's kernel, and the tensors between groups."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from engine.problem.spec import ProblemSpec
from engine.proposers.playbook.base import Program, Template

ALIGNMENT = 256
"""Alignment, in bytes, of tensors in the workspace. The judge's buffers have the same alignment."""


class Source(Struct, frozen=True):
    """A tensor that a group reads: the tensor of node ``node``, starting at element ``offset``."""

    node: str
    offset: int = 0


class Group(Struct, frozen=True):
    """A part of the graph as a separate problem, with canonical names, so that equal parts compare equal.

    ``sources`` and ``results`` list the nodes behind the arguments of ``launch``, in order.
    """

    spec: ProblemSpec
    sources: tuple[Source, ...]
    results: tuple[str, ...]


class Kind(Struct, frozen=True):
    """The kernel of one or several groups.

    Attributes:
        times: How many groups the kernel computes.
        cost: The memory traffic of these groups in bytes, plus the number of bytes whose transfer takes as long as the
            arithmetic.
    """

    spec: ProblemSpec
    pattern: str
    program: Program
    template: Template
    times: int
    cost: float


class Step(Struct, frozen=True):
    """One launch of ``kind`` (a position in ``Plan.kinds``)."""

    kind: int
    sources: tuple[Source, ...]
    results: tuple[str, ...]


class Plan(Struct, frozen=True):
    """All steps of a problem, in order. ``bound`` maps nodes to the problem's tensors, and ``offsets`` maps other nodes
    to the workspace.
    """

    kinds: tuple[Kind, ...]
    steps: tuple[Step, ...]
    bound: dict[str, str]
    offsets: dict[str, int]
    tensor_bytes: int

    @property
    def shares(self) -> tuple[float, ...]:
        """Return each kernel's share of the total cost."""
        total = sum(kind.cost for kind in self.kinds) or 1.0
        return tuple(kind.cost / total for kind in self.kinds)


def place(steps: Sequence[Step], sizes: dict[str, int]) -> tuple[dict[str, int], int]:
    """Return each tensor's offset in the workspace, and the workspace's total size, both in bytes.

    Args:
        sizes: The size in bytes of each tensor in the workspace.

    Two tensors may share memory if their lifetimes do not overlap.
    """
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    for number, step in enumerate(steps):
        for name in (*step.results, *(source.node for source in step.sources)):
            if name in sizes:
                first.setdefault(name, number)
                last[name] = number
    offsets: dict[str, int] = {}
    end = 0
    for name in sorted(first, key=lambda one: (-sizes[one], first[one])):
        size = -(-sizes[name] // ALIGNMENT) * ALIGNMENT
        taken = sorted(
            (offsets[other], offsets[other] + -(-sizes[other] // ALIGNMENT) * ALIGNMENT)
            for other in offsets
            if first[other] <= last[name] and first[name] <= last[other]
        )
        at = 0
        for begin, stop in taken:
            if at + size <= begin:
                break
            at = max(at, stop)
        offsets[name] = at
        end = max(end, at + size)
    return offsets, end
