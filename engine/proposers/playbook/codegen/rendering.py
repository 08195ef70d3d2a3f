"""Render kernel files from the Jinja templates in ``engine/proposers/playbook/templates``.

A template reads like the kernel that it produces. Python passes it the names, numbers, expressions and statements that
depend on the program. ``*.cpp.j2`` and ``*.cu.j2`` are kernels. A leading ``_`` marks a partial template that kernels
include.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import jinja2

_WIDTH = 100
"""The line length, in columns, at which parameter lists wrap."""
_BLANKS = re.compile(r"\n{3,}")


@cache
def _environment() -> jinja2.Environment:
    import jinja2  # Deferred import, because a process that only ranks ideas does not need it.

    folder = resources.files("engine.proposers.playbook") / "templates"
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(str(folder)),
        undefined=jinja2.StrictUndefined,
        autoescape=False,  # The output is C, so nothing must be escaped.
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        auto_reload=False,
    )
    environment.filters["indented"] = indented
    environment.filters["used_in"] = used_in
    environment.globals["parameter_list"] = parameter_list
    return environment


def render(template: str, **names: object) -> str:
    """Render ``template``, and collapse consecutive blank lines. Raises ``jinja2.UndefinedError``."""
    return _BLANKS.sub("\n\n", _environment().get_template(template).render(names)).strip("\n") + "\n"


@cache
def fixed_text(template: str) -> str:
    """Return the text of a template that has no parameters."""
    return render(template)


def indented(text: str, columns: int = 2) -> str:
    """Indent ``text`` by ``columns``. Keep preprocessor lines at the margin, and drop blank lines."""
    margin = " " * columns
    lines = [line for line in text.split("\n") if line and not line.isspace()]
    return "\n".join([line if line.startswith("#") else margin + line for line in lines])


def used_in(parameters: Sequence[tuple[str, str]], body: str) -> list[str]:
    """Format parameters (type, name) in C. Parameters that ``body`` does not mention stay unnamed, to avoid
    warnings.
    """
    words = set(re.findall(r"\w+", body))
    return [f"{type_} {name}" if name in words else f"{type_} /*{name}*/" for type_, name in parameters]


def parameter_list(head: str, parameters: Sequence[str]) -> str:
    """Return ``head(parameters) {``, wrapped if the text is too long for one line."""
    line = f"{head}({', '.join(parameters)}) {{"
    if len(line) <= _WIDTH:
        return line
    joined = textwrap.wrap(", ".join(one.replace(" ", "\0") for one in parameters), _WIDTH - 6)
    return "\n".join([f"{head}(", *(f"    {one}" for one in joined)]).replace("\0", " ") + ") {"
