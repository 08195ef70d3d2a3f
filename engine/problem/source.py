"""Execute a problem file as a separate module. This module does not import torch."""

from __future__ import annotations

import linecache
import sys
import types
from collections.abc import Callable
from itertools import count
from typing import Any

_numbers = count()


class ProblemFileError(Exception):
    """The file does not define a usable problem. ``hint``: the remedy."""

    def __init__(self, message: str, hint: str, line: int | None = None) -> None:
        super().__init__(message)
        self.hint = hint
        self.line = line


class ProblemModule:
    """An executed problem file: ``Model``, ``get_inputs`` and ``get_init_inputs`` in a separate namespace."""

    def __init__(self, source: str, path: str) -> None:
        """Execute ``source``; tracebacks show ``path``.

        Raises whatever the file raises, and ``ProblemFileError`` if ``Model`` or ``get_inputs`` is missing.
        """
        name = f"kernel_tui_problem_{next(_numbers)}"
        module = types.ModuleType(name)
        module.__file__ = path
        # Dataclasses and pickle look up modules by name.
        sys.modules[name] = module
        # A session may run its frozen copy of the file. Tracebacks must then quote the copy, not the current file.
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
                f"the file does not define `{name}`",
                "define `Model` and `get_inputs()`, as in KernelBench's format",
            )
        return value  # type: ignore[no-any-return]
