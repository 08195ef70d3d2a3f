"""Build prompts from a search's state with jinja2 templates. This module reads no files except the templates.

The templates are in ``prompts/``: ``system``, ``ideas``, ``kernel``, ``fix``, and the files that these templates
include. A template with the same name in one of the caller's ``directories`` replaces the built-in template.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib import resources
from pathlib import Path
from typing import Any

import jinja2

from engine.problem.spec import LANGUAGE_NAMES, LANGUAGE_TITLES, MODULES, Language
from engine.proposers.categories import CATEGORY_NAMES
from engine.proposers.llm import facts
from engine.proposers.llm.approaches import approach
from engine.proposers.llm.model_protocol import Prompt
from engine.proposers.llm.profile import profile_lines
from engine.proposers.llm.trimming import failure
from engine.proposers.protocol import LANGUAGE, Board, IdeaDraft, Kernel, Task
from engine.session.records.model_calls import Purpose
from engine.session.records.speedup_text import speedup

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
                "required": ["category", "bottleneck", "method", "text", "variants"],
                "properties": {
                    "category": {"type": "string", "enum": list(IDEA_CATEGORIES)},
                    "bottleneck": _TEXT,
                    "method": _TEXT,
                    "text": _TEXT,
                    "variants": {"type": "array", "items": _TEXT},
                },
            },
        }
    },
}
"""JSON schema for a reply with ideas. Each idea names one bottleneck, one method and ways to write its kernel."""


def language_of(idea: IdeaDraft, parent: Kernel | None) -> object:
    """Return the language of an idea's kernels: the idea's language, its parent's language, or None."""
    return idea.data.get(LANGUAGE) or (parent.language if parent is not None else None)


def ideas_schema(task: Task) -> dict[str, Any]:
    """Return the schema of a reply with ideas. If the task allows several languages, each idea names its language."""
    if len(task.allowed) == 1:
        return IDEAS_SCHEMA
    item = IDEAS_SCHEMA["properties"]["ideas"]["items"]
    named = {"type": "string", "enum": [LANGUAGE_NAMES[language] for language in task.allowed]}
    item = item | {"required": [*item["required"], LANGUAGE], "properties": item["properties"] | {LANGUAGE: named}}
    ideas = IDEAS_SCHEMA["properties"]["ideas"] | {"items": item}
    return IDEAS_SCHEMA | {"properties": {"ideas": ideas}}


def fence_of(language: Language) -> str:
    """Return the word after the opening fence of a kernel's source, such as ``cuda``."""
    return "python" if language in MODULES else LANGUAGE_NAMES[language]


class TemplateProblem(Exception):
    """A template is invalid. The message gives the file, the line and the error."""


class Prompts:
    """Render prompts. ``directories`` may contain a person's own templates. The first match wins."""

    def __init__(self, directories: Iterable[Path] = ()) -> None:
        self._directories = tuple(directories)
        built_in = str(resources.files("engine.proposers.llm") / "prompts")
        self._environment = jinja2.Environment(
            loader=jinja2.FileSystemLoader([*map(str, self._directories), built_in]),
            undefined=jinja2.StrictUndefined,
            autoescape=False,  # Prompts are plain text.
            trim_blocks=True,
            lstrip_blocks=True,
            keep_trailing_newline=False,
        )
        self._environment.filters["speedup"] = speedup

    def ideas(self, task: Task, parent: Kernel | None, board: Board, count: int) -> Prompt:
        """Build the prompt for ``count`` ideas: for ``parent``, or for first kernels if there is no parent. Raises
        :class:`TemplateProblem`.
        """
        return self._prompt(
            "ideas",
            task,
            schema=ideas_schema(task),
            suffixes=list(task.allowed),
            parent=parent,
            siblings=facts.sibling_lines(board, parent),
            slowdown=lambda idea: facts.slowdown(board, parent, idea),
            leaders=facts.leaders(board, parent),
            other=(other := facts.shown_source(board, parent)),
            other_diff=facts.changes_between(parent, other),
            tried=(tried := facts.relevant_ideas(board, parent)),
            more_tried=len(facts.tried_ideas(board)) - len(tried),
            fastest=facts.fastest(board, parent),
            lineage=(parent.variant if parent is not None else None, *board.lineage),
            examples=facts.examples(board),
            worked=facts.worked_elsewhere(task, board),
            count=count,
            categories={key: CATEGORY_NAMES[key] for key in IDEA_CATEGORIES},
        )

    def kernel(self, task: Task, idea: IdeaDraft, parent: Kernel | None, board: Board, number: int) -> Prompt:
        """Build the prompt for kernel ``number`` of ``idea``. Raises :class:`TemplateProblem`."""
        task = task.in_language(language_of(idea, parent))
        return self._prompt(
            "kernel",
            task,
            idea=idea,
            parent=parent,
            failures=[(one.variant, failure(one.verdict)) for one in facts.failed_siblings(board, idea.text)],
            fastest=facts.fastest(board, parent),
            number=number,
            examples=facts.examples(board),
            approach=approach(task.language, number, idea),
        )

    def fix(self, task: Task, idea: IdeaDraft, failed: Kernel, board: Board, unusable: str, turn: int) -> Prompt:
        """Build the prompt to repair ``failed``. ``board.lineage`` starts with ``failed``.

        If the last reply contained no kernel, ``unusable`` gives the reason, and ``failed.source`` is the reply.
        """
        task = task.in_language(failed.language)
        return self._prompt(
            "fix",
            task,
            idea=idea,
            failed=failed,
            unusable=unusable,
            said=failed.source[:_REPLY_CHARS],
            failure=failure(failed.verdict),
            parent_diff=facts.changes_from_parent(board, failed),
            repairs=[(one.variant, failure(one.verdict)) for one in facts.earlier_repairs(board)],
            failures=[(one.variant, failure(one.verdict)) for one in facts.failed_siblings(board, idea.text, failed)],
            turn=turn,
        )

    def names(self) -> list[str]:
        """Return the names of all prompt templates, without the suffix."""
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
            "suffix": task.language,
            "form": task.language,  # A session may contain templates of earlier versions, which use this name.
            "language": LANGUAGE_TITLES[task.language],
            "languages": [LANGUAGE_NAMES[language] for language in task.allowed],
            "titles": LANGUAGE_TITLES,
            "fence": fence_of(task.language),
            "fence_of": fence_of,
            "device": facts.device_lines(task),
            "cost": facts.cost_line(task),
            "score": lambda kernel, brief=False: facts.score(task, kernel, brief=brief),
            "profile": lambda kernel: profile_lines(task, kernel, brief=purpose != "ideas"),
            # Templates of earlier versions use this name too.
            "resources": lambda kernel: "; ".join(profile_lines(task, kernel)),
            "tried_line": facts.tried_line,
            "time_of": facts.time_of,
            "leader_idea": facts.leader_idea,
            "worked_line": facts.worked_line,
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
