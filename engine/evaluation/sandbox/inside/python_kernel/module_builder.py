"""Compile the extensions of a ``.py`` kernel by executing its module in a confined process that may run compilers.

``python -m ...python_kernel.module_builder MODULE PROBLEM DIRECTORY ISOLATE``: the builder writes extensions into
DIRECTORY, the only writable directory. No GPU is visible. The builder ignores errors in the module itself, because the
runner reports them. Threat: escape, resources.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import resource
import shutil
import sys
from pathlib import Path

from engine.evaluation.judge_policy import POLICY
from engine.evaluation.sandbox.inside.confinement import isolation
from engine.evaluation.sandbox.inside.python_kernel import extensions


def main() -> int:
    module_path, problem_path, directory, isolate = Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]), sys.argv[4]
    isolation.die_with_parent()
    if isolate == "1":
        isolation.enter_namespaces()
        isolation.restrict_files(False, readable=[*_readable(), str(module_path.parent)], writable=[str(directory)])
    memory_bytes, file_bytes = POLICY.sandbox.builder_memory_bytes, POLICY.sandbox.compiled_file_bytes
    resource.setrlimit(resource.RLIMIT_DATA, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes, file_bytes))
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
    # Some modules build extensions in their constructor.
    problem = ProblemModule(problem_path.read_text(), str(problem_path))
    module.ModelNew(*problem.get_init_inputs())


def _readable() -> list[str]:
    """Return the directories of Python's packages, the compiler and the CUDA toolkit."""
    named = [os.environ.get("CUDA_HOME")]
    named += [str(Path(found).resolve().parents[1]) for found in [shutil.which(os.environ.get("CXX", "c++"))] if found]
    return [path for path in (*sys.path, *named) if path and Path(path).exists()]


if __name__ == "__main__":
    sys.exit(main())
