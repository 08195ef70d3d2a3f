"""Compile what a ``.py`` kernel asks for: execute its module where compilers may run and nothing else is in reach.

``python -m engine.evaluation.runner.module_builder MODULE PROBLEM DIRECTORY ISOLATE``: extensions go below DIRECTORY,
the only place that can be written. No GPU is visible. What the module raises by itself is left to the runner to say.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import resource
import shutil
import sys
from pathlib import Path

from engine.evaluation.runner import extensions, isolation

_MEMORY_BYTES = 16 << 30
_FILE_BYTES = 2 << 30


def main() -> int:
    module_path, problem_path, directory, isolate = Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]), sys.argv[4]
    isolation.die_with_parent()
    if isolate == "1":
        isolation.enter_namespaces(os.open(os.devnull, os.O_WRONLY))
        isolation.restrict_files(False, readable=[*_readable(), str(module_path.parent)], writable=[str(directory)])
    resource.setrlimit(resource.RLIMIT_DATA, (_MEMORY_BYTES, _MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_FSIZE, (_FILE_BYTES, _FILE_BYTES))
    extensions.install()
    with contextlib.suppress(Exception, SystemExit):
        _execute(module_path, problem_path)
    sys.stdout.flush()
    os._exit(0)


def _execute(module_path: Path, problem_path: Path) -> None:
    from engine.problem.source import ProblemModule

    spec = importlib.util.spec_from_file_location("kernel", module_path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["kernel"] = module
    spec.loader.exec_module(module)
    # Some build in their constructor.
    problem = ProblemModule(problem_path.read_text(), str(problem_path))
    module.ModelNew(*problem.get_init_inputs())


def _readable() -> list[str]:
    """Python's packages, the compiler's and the CUDA toolkit's trees, torch's precompiled headers."""
    named = [os.environ.get("CUDA_HOME"), os.environ.get("KERNEL_TUI_PCH")]
    named += [str(Path(found).resolve().parents[1]) for found in [shutil.which(os.environ.get("CXX", "c++"))] if found]
    return [path for path in (*sys.path, *named) if path and Path(path).exists()]


if __name__ == "__main__":
    sys.exit(main())
