"""Prompts out of jinja2 templates: how a search stands in, one exact prompt out. Pure but for reading the templates.

The templates lie in ``engine/proposers/prompts``: ``system``, ``ideas``, ``kernel``, ``fix``, and what these include.
A template of the same name in one of ``directories`` is used instead.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib import resources
from pathlib import Path
from typing import Any

import jinja2

from engine.models.protocol import Prompt, Purpose
from engine.proposers.language import facts
from engine.proposers.language.approaches import approach
from engine.proposers.language.trimming import failure
from engine.proposers.protocol import CATEGORY_NAMES, Board, IdeaDraft, Kernel, Task

SUFFIX = ".md.j2"
IDEA_CATEGORIES = ("memory", "latency", "precision", "compute", "parallelism", "control")
_REPLY_CHARS = 1_500

_TEXT = {"type": "string"}
IDEAS_SCHEMA: dict[str, Any] = {
    "type": "object",
    "additionalProperties": False,
    "required": ["ideas"],
    "properties": {
        "ideas": {
            "type": "array",
            "items": {
                "type": "object",
                "additionalProperties": False,
                "required": ["category", "bottleneck", "text"],
                "properties": {
                    "category": {"type": "string", "enum": list(IDEA_CATEGORIES)},
                    "bottleneck": _TEXT,
                    "text": _TEXT,
                },
            },
        }
    },
}
"""What a reply with ideas looks like: each names one bottleneck and one method."""


class TemplateProblem(Exception):
    """A template that cannot be used: names the file, the line and what is wrong with it."""


class Prompts:
    """Renders prompts. ``directories``: where a person's own templates may lie, the first that has one wins."""

    def __init__(self, directories: Iterable[Path] = ()) -> None:
        self._directories = tuple(directories)
        built_in = str(resources.files("engine") / "proposers" / "prompts")
        self._environment = jinja2.Environment(
            loader=jinja2.FileSystemLoader([*map(str, self._directories), built_in]),
            undefined=jinja2.StrictUndefined,
            autoescape=False,  # prompts are plain text
            trim_blocks=True,
            lstrip_blocks=True,
            keep_trailing_newline=False,
        )
        self._environment.filters["speedup"] = lambda value: f"{value:.2f}x"

    def ideas(self, task: Task, parent: Kernel | None, board: Board, count: int) -> Prompt:
        """Ask for ``count`` ideas for ``parent``, or for first kernels. Raises :class:`TemplateProblem`."""
        return self._prompt(
            "ideas",
            task,
            schema=IDEAS_SCHEMA,
            parent=parent,
            leaders=facts.leaders(board, parent),
            other=facts.shown_source(board, parent),
            tried=facts.relevant_ideas(board, parent),
            bank=facts.bank(board),
            count=count,
            categories={key: CATEGORY_NAMES[key] for key in IDEA_CATEGORIES},
        )

    def kernel(self, task: Task, idea: IdeaDraft, parent: Kernel | None, board: Board, number: int) -> Prompt:
        """Ask for the kernel with place ``number`` of ``idea``. Raises :class:`TemplateProblem`."""
        return self._prompt(
            "kernel",
            task,
            idea=idea,
            parent=parent,
            bank=facts.bank(board),
            approach=approach(task.form, number),
        )

    def fix(self, task: Task, idea: IdeaDraft, failed: Kernel, unusable: str, turn: int) -> Prompt:
        """Ask to repair ``failed``; ``unusable``: why the reply before held no kernel, its source being that reply."""
        return self._prompt(
            "fix",
            task,
            idea=idea,
            failed=failed,
            unusable=unusable,
            said=failed.source[:_REPLY_CHARS],
            failure=failure(failed.verdict),
            turn=turn,
        )

    def names(self) -> list[str]:
        """The templates there are, without their suffix."""
        return sorted(name.removesuffix(SUFFIX) for name in self._environment.list_templates() if name.endswith(SUFFIX))

    def check(self) -> None:
        """Compile every template. Raises :class:`TemplateProblem`."""
        for name in self.names():
            try:
                self._environment.get_template(name + SUFFIX)
            except jinja2.TemplateError as error:
                raise _problem(name, error) from error

    def _prompt(self, purpose: Purpose, task: Task, schema: dict[str, Any] | None = None, **more: Any) -> Prompt:
        shared = {
            "task": task,
            "form": task.form,
            "language": {"cu": "CUDA C++", "cpp": "C++", "py": "Python"}[task.form],
            "fence": {"cu": "cuda", "cpp": "cpp", "py": "python"}[task.form],
            "device": facts.device_lines(task),
            "cost": facts.cost_line(task),
            "score": lambda kernel: facts.score(task, kernel),
            "resources": lambda kernel: facts.resources(kernel.verdict.build),
            "tried_line": facts.tried_line,
        }
        return Prompt(purpose, self._render("system", shared), self._render(purpose, shared | more), schema)

    def _render(self, name: str, values: dict[str, Any]) -> str:
        try:
            return self._environment.get_template(name + SUFFIX).render(values).strip() + "\n"
        except jinja2.TemplateError as error:
            raise _problem(name, error) from error


def _problem(name: str, error: jinja2.TemplateError) -> TemplateProblem:
    file = getattr(error, "filename", None) or f"{name}{SUFFIX}"
    line = getattr(error, "lineno", None)
    return TemplateProblem(f"{file}{f':{line}' if line else ''}: {error.message or type(error).__name__}")
