"""Write the standalone program: header, kernel, and a ``main`` that fills inputs, and runs, checks and times the
kernel.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from engine.config.tolerance import DEFAULT, SessionTolerance, largest_error
from engine.evaluation.build.compilers import exported_flags
from engine.export.standalone.numbers import FIRST, PLACES, SECOND, STEP, Expected, Filling
from engine.problem.c_header import ctype, derive_header
from engine.problem.spec import Language, ProblemSpec, TensorSpec, suffix_of

WARMUPS, CALLS = 10, 50
"""Numbers of untimed calls and of timed calls."""
KINDS = {
    "float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16", "int64": "I64", "int32": "I32",
    "int16": "I16", "int8": "I8", "uint8": "U8", "bool": "B8",
}  # fmt: skip
_LIBRARY = ("-fPIC", "-shared")
"""Compiler flags for shared libraries. A program does not need them."""


def program(
    problem: ProblemSpec,
    language: Language,
    source: str,
    expected: Expected,
    *,
    about: str = "",
    arch: str = "sm_90a",
    tolerance: SessionTolerance = DEFAULT,
    judged_ms: float | None = None,
    file_name: str = "",
) -> str:
    """Return the program as source text.

    ``about``: a line about the kernel's origin. ``judged_ms``: the kernel's time in its verdict. ``file_name``: the
    name of the program's file, for the compile command in the header.
    """
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).with_name("templates")),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    given = [*problem.inputs, *problem.weights]
    inputs = [
        {"name": one.name, "kind": KINDS[one.dtype], "numel": one.numel, "filling": _filling(filling)}
        for one, filling in zip(given, expected.fillings, strict=True)
    ]
    outputs = [
        {
            "name": one.name,
            "kind": KINDS[one.dtype],
            "numel": one.numel,
            "places": ", ".join(map(str, places)),
            "expected": ", ".join(map(_number, values)),
            "tolerance": largest_error(tolerance if tolerance is not None else DEFAULT, one.dtype),
        }
        for one, places, values in zip(problem.outputs, expected.places, expected.values, strict=True)
    ]
    arguments = [_cast(one, language, f"given{place}") for place, one in enumerate(given)]
    arguments += [_cast(one, language, f"made{place}") for place, one in enumerate(problem.outputs)]
    arguments += ["scratch", *(["cudaStream_t(0)"] if language == "cu" else [])]
    values: dict[str, Any] = {
        "about": about or f"A kernel for {problem.id}.",
        "places": PLACES,
        "command": compile_command(language, arch, Path(file_name or _default_name(problem, language))),
        "header": derive_header(problem, language).replace("#pragma once\n", ""),
        "source": source.strip(),
        "cuda": language == "cu",
        "workspace": re.search(r"\bworkspace_bytes\s*\(", source) is not None,
        "inputs": inputs,
        "outputs": outputs,
        "arguments": ", ".join(arguments),
        "step": STEP,
        "first": FIRST,
        "second": SECOND,
        "warmups": WARMUPS,
        "calls": CALLS,
        "judged": f"; the verdict: {judged_ms:.4g} ms" if judged_ms is not None else "",
    }
    return environment.get_template("main.cpp.j2").render(values)


def _filling(one: Filling) -> str:
    return f"{{{one.seed}ull, {one.mean!r}, {one.width!r}, {one.low}, {one.span}ull}}"


def _number(value: float) -> str:
    if value != value:
        return "NAN"
    return repr(value).replace("inf", "INFINITY")


def _cast(tensor: TensorSpec, language: Language, name: str) -> str:
    const = "" if tensor.role == "output" or tensor.mutated else "const "
    return f"static_cast<{const}{ctype(tensor.dtype, language)}*>({name})"


def _default_name(problem: ProblemSpec, language: Language) -> str:
    return re.sub(r"\W", "_", problem.id) + suffix_of(language)


def compile_command(language: Language, arch: str, file: Path) -> str:
    """Return the shell command that compiles and runs the program ``file``."""
    binary = file.with_suffix("")
    source, target = shlex.quote(str(file)), shlex.quote(str(binary))
    run = target if binary.is_absolute() else f"./{target}"
    if language == "cpp":
        flags = " ".join(flag for flag in exported_flags() if flag not in _LIBRARY)
        return f"g++ {flags} {source} -o {target} && {run}"
    compute = arch.replace("sm_", "compute_")
    return f"nvcc -gencode=arch={compute},code={arch} -std=c++17 -O3 {source} -o {target} && {run}"
