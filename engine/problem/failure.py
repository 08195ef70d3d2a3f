"""Locate an error in a problem file and suggest a remedy. This module does not import torch."""

from __future__ import annotations

import traceback
from pathlib import Path

from msgspec import Struct

from engine.problem.source import ProblemFileError
from engine.system.text_file import UnreadableFile


class ProblemFailure(Struct, frozen=True, omit_defaults=True):
    """The reason why the inspection of a problem file failed. ``line``: the number of the line that failed, or None."""

    id: str
    path: str
    message: str
    hint: str
    line: int | None = None

    def __str__(self) -> str:
        where = self.path if self.line is None else f"{self.path}:{self.line}"
        return f"{where}: {self.message}{f'; {self.hint}' if self.hint else ''}"


def line_in(error: BaseException, path: str) -> int | None:
    """Find the innermost line of ``path`` in the traceback of ``error``. Return the line's number, or None."""
    if isinstance(error, SyntaxError) and error.filename == path:
        return error.lineno
    if isinstance(error, ProblemFileError) and error.line is not None:
        return error.line
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == path]
    return lines[-1] if lines else None


def failure_of(error: BaseException, problem_id: str, path: Path) -> ProblemFailure:
    """Describe ``error`` for the file's author: location, exception and remedy."""
    text = " ".join(str(error).split())[:400]
    if isinstance(error, ProblemFileError):
        message, hint = text, error.hint
    elif isinstance(error, UnreadableFile):
        message, _, remedy = error.reason.partition("; ")
        hint = remedy or "check the path in `problems`"
    elif isinstance(error, SyntaxError):
        message, hint = f"SyntaxError: {error.msg}", ""
    elif isinstance(error, ModuleNotFoundError):
        message = f"the file imports `{error.name}`, which is not installed"
        hint = f"install {error.name} into kernel-tui's environment, or remove the import"
    elif isinstance(error, MemoryError) or "can't allocate memory" in text:
        message = "the file exceeded the memory limit, because it allocated memory outside PyTorch's fake tensors"
        hint = "create large tensors with torch functions inside get_inputs()"
    else:
        message = f"the file raised {type(error).__name__}" + (f": {text}" if text else "")
        hint = "make this call work: `Model(*get_init_inputs())(*get_inputs())`"
    return ProblemFailure(id=problem_id, path=str(path), message=message, hint=hint, line=line_in(error, str(path)))
