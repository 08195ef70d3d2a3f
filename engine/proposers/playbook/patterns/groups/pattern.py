"""The pattern of problems whose parts match other patterns."""

from __future__ import annotations

from engine.problem.spec import ProblemSpec
from engine.proposers.playbook.base import Language, Pattern
from engine.proposers.playbook.patterns.groups.partition import partition
from engine.proposers.playbook.patterns.groups.plan import Plan
from engine.proposers.playbook.patterns.groups.template import Groups, GroupsProgram


class Grouped(Pattern):
    """Problems with several matrix products or convolutions, reductions of their results, batch norms, or whole
    networks.
    """

    name = "groups"

    def __init__(self, patterns: tuple[Pattern, ...]) -> None:
        def plan_of(spec: ProblemSpec, language: Language) -> Plan:
            return partition(spec, language, patterns)

        self.templates = (Groups("cpp", plan_of), Groups("cu", plan_of))

    def recognize(self, spec: ProblemSpec) -> GroupsProgram | None:
        return None if spec.graph is None else GroupsProgram(spec)
