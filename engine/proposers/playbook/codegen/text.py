"""Helpers for the patterns that assemble C text in Python instead of Jinja: matmuls, convolutions and attention."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from string import Template

from engine.problem.spec import ProblemSpec
from engine.proposers.playbook.codegen.cpp_math import needs_no_errno
from engine.proposers.playbook.codegen.rendering import parameter_list, used_in
from engine.proposers.playbook.codegen.signature import launch_signature


def fill(template: str, **names: object) -> str:
    """Replace each ``$name`` or ``${name}`` in ``template``. Raises ``KeyError`` for a missing name."""
    return Template(template).substitute({key: str(value) for key, value in names.items()})


def indent(lines: Iterable[str]) -> list[str]:
    """Indent ``lines`` by two columns. Keep preprocessor lines at the margin."""
    return [line if not line or line.startswith("#") else f"  {line}" for text in lines for line in text.split("\n")]


def banner(title: str, ops: Iterable[str]) -> list[str]:
    """Return the head of a C++ file: the title, the includes, and the pragma that ``ops`` need."""
    lines = [f"// {title}", "#include <cmath>", "#include <cstddef>", ""]
    if needs_no_errno(ops):
        lines += ['#pragma GCC optimize("no-math-errno", "no-trapping-math")  // lets the compiler vectorize sqrt', ""]
    return lines


def function(comment: str, result: str, name: str, parameters: Sequence[tuple[str, str]], body: list[str]) -> list[str]:
    """Return a C++ function. Parameters that ``body`` does not mention stay unnamed, to avoid warnings."""
    head = parameter_list(f"inline {result} {name}", used_in(parameters, "\n".join(body)))
    return [f"// {comment}", head, *indent(body), "}"]


def omp_for(schedule: str) -> str:
    """Return the OpenMP clause that shares a loop among threads."""
    return f"for schedule({schedule})"


def launch(spec: ProblemSpec, used: Iterable[str], body: Iterable[str]) -> str:
    """Return the ``launch`` function of a CUDA file, with the statements in ``body``."""
    signature = launch_signature(spec, "cu", frozenset((*used, "stream")))
    lines = "\n".join(f"    {line}" for line in body)
    return f"{signature} {{\n{lines}\n}}\n"
