"""What a family is: a class of problems that one kind of program describes, with a template per language."""

from __future__ import annotations

from abc import ABC, abstractmethod

from engine.problem.spec import ProblemSpec
from engine.proposers.playbook.ir import Program
from engine.proposers.playbook.template import Template


class Family(ABC):
    """One class of problems. A new family is one file beside this one and one entry in ``families.FAMILIES``."""

    name: str
    templates: tuple[Template, ...]

    @abstractmethod
    def recognise(self, spec: ProblemSpec) -> Program | None:
        """The program of ``spec``, or None if it belongs to another family. Raises ``Refused`` with a reason."""
