"""Partition a graph into groups that other patterns recognize."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Set
from functools import lru_cache
from itertools import combinations, islice

import msgspec

from engine.problem.spec import DTYPE_BYTES, LANGUAGE_NAMES, ProblemSpec
from engine.proposers.playbook.base import Language, Pattern, Program, Template, Unsupported
from engine.proposers.playbook.patterns.groups.cut import cut, needs_copy
from engine.proposers.playbook.patterns.groups.graph import Graph
from engine.proposers.playbook.patterns.groups.plan import Group, Kind, Plan, Step, place
from engine.proposers.playbook.patterns.groups.rewrites import references_of

MAX_STEPS = 1500
"""Maximum number of operators in a graph, not counting views and constants. A longer graph is usually an unrolled
recurrence.
"""
MAX_KINDS = 96
"""Maximum number of different kernels in a file. A longer file takes minutes to compile."""
LOOK_AHEAD = 8
"""Number of operators that a group may add before a pattern must recognize the group again. Attention built from
primitives needs about five operators between its matrix products.
"""
MAX_MEMBERS = 60
MAX_TRIES = 36
"""Maximum number of sets of one or two operands that the partition tries to copy before it copies all operands. Eight
operands have 36 such sets. A concatenation may have hundreds of operands, and each try takes about 10 ms.
"""
HEAVY = frozenset(f"aten.{name}.default" for name in ("convolution", "mm", "bmm", "addmm", "baddbmm", "mv", "addmv"))
"""Compute-heavy operators. No pattern supports more than two compute-heavy nodes."""
FLOPS_PER_BYTE = 20.0
"""Number of operations that take as long as the transfer of a byte. On current GPUs, the number is lower for fp32 units
and higher for tensor cores.
"""

Recognized = tuple[str, Program, Template]


def partition(spec: ProblemSpec, language: Language, patterns: tuple[Pattern, ...]) -> Plan:
    """Return the plan for ``spec``. Raises ``Unsupported`` if any part of the graph matches no pattern."""
    found = _partition(msgspec.json.encode(spec), language, patterns)
    if isinstance(found, str):
        raise Unsupported(found)
    return found


@lru_cache(maxsize=64)
def _partition(encoded: bytes, language: Language, patterns: tuple[Pattern, ...]) -> Plan | str:
    """Return the plan for an encoded problem, or the reason why the problem has no plan."""
    try:
        return _Partition(msgspec.json.decode(encoded, type=ProblemSpec), language, patterns).plan()
    except Unsupported as unsupported:
        return str(unsupported)


@lru_cache(maxsize=4096)
def _recognize(encoded: bytes, language: Language, patterns: tuple[Pattern, ...]) -> Recognized | str:
    """Return the pattern, program and template for an encoded group, or the reason why no pattern supports the
    group.
    """
    spec = msgspec.json.decode(encoded, type=ProblemSpec)
    reasons = []
    for pattern in patterns:
        try:
            program = pattern.recognize(spec)
        except Unsupported as unsupported:
            reasons.append(str(unsupported))
            continue
        if program is not None:
            template = next((one for one in pattern.templates if one.language == language), None)
            lack = f"{pattern.name} has no {LANGUAGE_NAMES[language]} template"
            refusal = lack if template is None else template.refusal(program)
            if template is not None and refusal is None:
                return pattern.name, program, template
            reasons.append(str(refusal))
    # A pattern that supports the operators gives a better reason than a pattern that does not.
    specific = (reason for reason in reasons if not reason.startswith("no pattern covers"))
    return next(specific, reasons[0] if reasons else "no pattern matches this part of the problem")


class _Partition:
    def __init__(self, spec: ProblemSpec, language: Language, patterns: tuple[Pattern, ...]) -> None:
        self.language, self.patterns = language, patterns
        self.graph = Graph(spec)
        self.done = {name for name, node in self.graph.nodes.items() if node.op == "placeholder"}
        self.kinds: dict[bytes, Kind] = {}
        self.steps: list[Step] = []
        if len(self.graph.steps) > MAX_STEPS:
            raise Unsupported(f"the problem's graph has more than {MAX_STEPS} operators")

    def plan(self) -> Plan:
        waiting = dict.fromkeys(self.graph.steps)
        while waiting:
            seed = next(iter(waiting))
            members, group = self._grow(seed, waiting)
            self._add(group)
            for name in members:
                waiting.pop(name, None)
            self.done.update(group.results)
        bound = {name: node.target for name, node in self.graph.nodes.items() if node.op == "placeholder"}
        for tensor, name in zip(self.graph.spec.outputs, self.graph.returned, strict=True):
            self._return(tensor.name, name, bound)
        for buffer, name in self.graph.writes.items():
            self._copy_to(bound[buffer], name, bound)
        if len(self.kinds) > MAX_KINDS:
            raise Unsupported(
                f"the problem needs {len(self.kinds)} different kernels, but a kernel file can have at most {MAX_KINDS}"
            )
        sizes = {result: self._bytes(result) for step in self.steps for result in step.results if result not in bound}
        offsets, tensor_bytes = place(self.steps, sizes)
        return Plan(tuple(self.kinds.values()), tuple(self.steps), bound, offsets, tensor_bytes)

    def _return(self, output: str, name: str, bound: dict[str, str]) -> None:
        """Make the group of node ``name`` write to ``output``, or add a group that copies the node."""
        base = self.graph.base(name, self.done)
        if base in self.done and base not in bound and self.graph.offset(name, base) == 0 and self._whole(name, base):
            bound[base] = output
            return
        self._copy_to(output, name, bound)

    def _copy_to(self, tensor: str, name: str, bound: dict[str, str]) -> None:
        if self.graph.layout(name, self.graph.base(name, self.done)) is None:
            self._copy(self._views_to_copy(name))
        group = cut(self.graph, (), self.done, (name,))
        alias = f"{tensor}__copy"
        self._add(Group(group.spec, group.sources, (alias,)))
        bound[alias] = tensor

    def _whole(self, name: str, base: str) -> bool:
        return self._bytes(name) == self._bytes(base)

    def _bytes(self, name: str) -> int:
        node, size = self.graph.nodes[name], 1
        for each in node.shape or ():
            size *= each
        return size * DTYPE_BYTES[node.dtype or "float32"]

    def _grow(self, seed: str, waiting: Container[str]) -> tuple[frozenset[str], Group]:
        """Return the largest set of steps around ``seed`` that a pattern recognizes. Raises ``Unsupported``."""
        members, reason = self.graph.unit(seed), ""
        best, reason = self._try(members)
        if best is None:
            self._copy_operands(members)
            best, _ = self._try(members)
        accepted = members
        while True:
            for name in self._ready(accepted, waiting) if best is not None else ():
                group, _ = self._try(accepted | self.graph.unit(name))
                if group is not None:
                    accepted, best = accepted | self.graph.unit(name), group
                    break
            else:
                ahead = self._look_ahead(accepted, waiting)
                if ahead is None:
                    break
                accepted, best = ahead
        if best is None:
            raise Unsupported(reason)
        return accepted, best

    def _look_ahead(self, members: frozenset[str], waiting: Container[str]) -> tuple[frozenset[str], Group] | None:
        for _ in range(LOOK_AHEAD):
            name = next(self._ready(members, waiting), None)
            if name is None:
                return None
            members |= self.graph.unit(name)
            group, _ = self._try(members)
            if group is not None:
                return members, group
            if self._heavy(members) >= 2:
                return None
        return None

    def _ready(self, members: frozenset[str], waiting: Container[str]) -> Iterator[str]:
        """Yield the steps that need a result of ``members`` and otherwise only existing tensors."""
        if len(members) > MAX_MEMBERS:
            return
        users = {name for one in members for name in self.graph.consumers.get(one, ()) if name in waiting}
        for name in sorted(users - members, key=self.graph.order.__getitem__):
            bases = self.graph.bases(name, self.done)
            if not bases.isdisjoint(members) and all(one in members or one in self.done for one in bases):
                yield name

    def _heavy(self, members: frozenset[str]) -> int:
        return sum(self.graph.nodes[name].target in HEAVY for name in members)

    def _try(self, members: frozenset[str], done: Set[str] | None = None) -> tuple[Group | None, str]:
        """Return the group of ``members``, or the reason why no pattern recognizes the group.

        Args:
            done: The tensors that exist. By default, the tensors that steps have computed.
        """
        if self._heavy(members) > 2:
            return None, "the group has more than two matrix products or convolutions"
        try:
            group = cut(self.graph, members, self.done if done is None else done)
        except Unsupported as unsupported:
            return None, str(unsupported)
        found = _recognize(msgspec.json.encode(group.spec), self.language, self.patterns)
        return (None, self._named(found, group)) if isinstance(found, str) else (group, "")

    def _named(self, reason: str, group: Group) -> str:
        """Return ``reason`` with the problem's tensor names instead of the group's."""
        tensors = (*group.spec.inputs, *group.spec.weights)
        for tensor, source in zip(tensors, group.sources, strict=True):
            own = self.graph.tensor(source.node)
            reason = reason.replace(f"`{tensor.name}`", f"`{own.name}`" if own else "an intermediate tensor")
        return reason

    def _copy_operands(self, members: frozenset[str]) -> None:
        """Copy up to two operands of ``members`` if a pattern then recognizes the group. Otherwise, copy every operand
        whose elements are not in memory order.
        """
        refs = dict.fromkeys(
            ref
            for member in sorted(members, key=self.graph.order.__getitem__)
            for ref in references_of(self.graph.nodes[member])
            if ref not in members
        )
        copies = {ref: self._views_to_copy(ref) for ref in refs}
        given = [ref for ref in refs if copies[ref]]
        few = (chosen for count in (1, 2) if count < len(given) for chosen in combinations(given, count))
        for chosen in islice(few, MAX_TRIES):
            views = dict.fromkeys(view for ref in chosen for view in copies[ref])
            if self._try(members, self.done | views.keys())[0] is not None:
                self._copy(views)
                return
        self._copy(dict.fromkeys(view for ref in given for view in copies[ref]))

    def _views_to_copy(self, name: str) -> list[str]:
        """Return the views to copy, in sequence, that put the elements of ``name`` in memory order."""
        found: list[str] = []
        while (view := needs_copy(self.graph, name, self.done.union(found))) is not None:
            found.append(view)
        return found

    def _copy(self, views: Iterable[str]) -> None:
        """Add groups that copy ``views``."""
        for view in views:
            if view not in self.done:
                self._add(cut(self.graph, (), self.done, (view,)))
                self.done.add(view)

    def _add(self, group: Group) -> None:
        """Add a step for ``group``. Raises ``Unsupported`` if no pattern recognizes the group."""
        encoded = msgspec.json.encode(group.spec)
        found = _recognize(encoded, self.language, self.patterns)
        if isinstance(found, str):
            raise Unsupported(self._named(found, group))
        known = self.kinds.get(encoded)
        times = 1 if known is None else known.times + 1
        self.kinds[encoded] = Kind(group.spec, *found, times, times * _cost(group.spec))
        self.steps.append(Step(list(self.kinds).index(encoded), group.sources, group.results))


def _cost(spec: ProblemSpec) -> float:
    """Return a group's cost in bytes: its memory traffic, plus the traffic that takes as long as its arithmetic."""
    shapes = {node.name: node.shape or () for node in spec.graph or ()}
    flops = 0.0
    for node in spec.graph or ():
        if node.target in HEAVY:
            refs = list(references_of(node))
            numel = 2.0
            for size in node.shape or ():
                numel *= size
            if node.target == "aten.convolution.default":
                for size in shapes[refs[1]][1:]:
                    numel *= size
            else:
                numel *= shapes[refs[-1]][-2] if len(shapes[refs[-1]]) > 1 else 1
            flops += numel
    return sum(tensor.nbytes for tensor in spec.tensors) + flops / FLOPS_PER_BYTE
