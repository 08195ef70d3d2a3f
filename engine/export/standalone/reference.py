"""Ask a child process with PyTorch for a standalone program's inputs and expected outputs."""

from __future__ import annotations

import math
import os
import subprocess

import msgspec

from engine.export import ExportError
from engine.export.standalone.numbers import Expected
from engine.problem.spec import ProblemSpec
from engine.system.python_process import python_command, python_path

LIMIT_S = 600.0
"""Time limit of the reference in seconds. A large matrix product takes a minute on a CPU."""


def expected_of(problem: ProblemSpec) -> Expected:
    """Return the reference's outputs on generated inputs. Raises ``ExportError``."""
    if problem.random:
        raise ExportError(f"{problem.id}: the model draws random numbers, so no program can check its outputs")
    if changed := [tensor.source_name for tensor in problem.tensors if tensor.mutated]:
        raise ExportError(f"{problem.id}: the model changes its buffer {changed[0]}, which a program cannot reproduce")
    command, job = python_command("engine.export.standalone.expected"), msgspec.json.encode(problem)
    environment = os.environ | {"PYTHONPATH": python_path()}
    try:
        done = subprocess.run(
            command,
            input=job,
            capture_output=True,
            env=environment,
            timeout=LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise ExportError(
            f"{problem.id}: the reference did not finish within {LIMIT_S:.0f} s; try again on an idle machine"
        ) from None
    if done.returncode:
        words = done.stderr.decode(errors="replace").strip().splitlines()
        raise ExportError(f"{problem.id}: the reference failed: {words[-1] if words else 'it printed no message'}")
    found = msgspec.msgpack.decode(done.stdout, type=Expected)
    for tensor, filling in zip((*problem.inputs, *problem.weights), found.fillings, strict=True):
        if not math.isfinite(filling.mean) or not math.isfinite(filling.width):
            raise ExportError(
                f"{problem.id}: {tensor.source_name} contains infinities or NaN, so a program cannot generate it; "
                "to use the kernel without kernel-tui, export it with --package NAME"
            )
    return found
