"""Executes a problem file in a module of its own and says where in it something went wrong. Imports no torch."""

from __future__ import annotations

import linecache
import sys
import traceback
import types
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

from msgspec import Struct

from engine.text_file import UnreadableFile

_numbers = count()


class ProblemFailure(Struct, frozen=True, omit_defaults=True):
    """A problem file that gave no specification. ``line`` is a line of the person's file, or None."""

    id: str
    path: str
    message: str
    hint: str
    line: int | None = None

    def __str__(self) -> str:
        where = self.path if self.line is None else f"{self.path}:{self.line}"
        return f"{where}: {self.message}; {self.hint}"


class ProblemFileError(Exception):
    """The file is not a problem, or cannot be used as one. ``hint`` says what to do."""

    def __init__(self, message: str, hint: str, line: int | None = None) -> None:
        super().__init__(message)
        self.hint = hint
        self.line = line


class ProblemModule:
    """A problem file after execution: ``Model``, ``get_inputs`` and ``get_init_inputs`` in a namespace of its own."""

    def __init__(self, source: str, path: str) -> None:
        """Executes ``source``; ``path`` is what tracebacks show. Raises whatever the file raises, and
        ``ProblemFileError`` if one of the three names is missing."""
        name = f"kernel_tui_problem_{next(_numbers)}"
        module = types.ModuleType(name)
        module.__file__ = path
        # Dataclasses and pickling look their module up by name.
        sys.modules[name] = module
        # The text that runs may be a session's frozen copy: tracebacks must quote it, not the file of today.
        linecache.cache[path] = (len(source), None, source.splitlines(keepends=True), path)
        try:
            exec(compile(source, path, "exec"), module.__dict__)
        except BaseException:
            del sys.modules[name]
            raise
        self.path = path
        self.names_cuda = "cuda" in source
        self.model_class: Callable[..., Any] = self._required(module, "Model")
        self.get_inputs: Callable[[], Any] = self._required(module, "get_inputs")
        self.get_init_inputs: Callable[[], Any] = getattr(module, "get_init_inputs", list)

    def _required(self, module: types.ModuleType, name: str) -> Callable[..., Any]:
        value = getattr(module, name, None)
        if not callable(value):
            raise ProblemFileError(
                f"defines no `{name}`",
                "a problem file defines `Model`, `get_inputs()` and `get_init_inputs()` (KernelBench's format)",
            )
        return value  # type: ignore[no-any-return]


def line_in(error: BaseException, path: str) -> int | None:
    """The innermost line of ``path`` that ``error`` came through."""
    if isinstance(error, SyntaxError) and error.filename == path:
        return error.lineno
    if isinstance(error, ProblemFileError) and error.line is not None:
        return error.line
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == path]
    return lines[-1] if lines else None


def failure_of(error: BaseException, problem_id: str, path: Path) -> ProblemFailure:
    """What a person needs to know of ``error``: where, what was raised, what to do."""
    text = " ".join(str(error).split())[:400]
    if isinstance(error, ProblemFileError):
        message, hint = text, error.hint
    elif isinstance(error, UnreadableFile):
        message, _, remedy = error.reason.partition("; ")
        hint = remedy or "check the path in `problems`"
    elif isinstance(error, SyntaxError):
        message, hint = f"SyntaxError: {error.msg}", "correct the file"
    elif isinstance(error, ModuleNotFoundError):
        message = f"imports `{error.name}`, which is not installed"
        hint = f"install {error.name} into the environment of kernel-tui, or remove the import"
    elif isinstance(error, MemoryError) or "can't allocate memory" in text:
        message = "asked for more memory than inspection may use, outside of PyTorch's fake tensors"
        hint = "create large tensors with torch functions inside get_inputs()"
    else:
        message = f"raised {type(error).__name__}" + (f": {text}" if text else "")
        hint = "run the file by itself: `Model(*get_init_inputs())(*get_inputs())` must work"
    return ProblemFailure(id=problem_id, path=str(path), message=message, hint=hint, line=line_in(error, str(path)))
