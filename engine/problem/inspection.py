"""Derive a :class:`ProblemSpec` from a problem file, if possible without running the model at full size.

``python -m engine.problem.inspection PATH ...`` prints one JSON line per file (:class:`Inspected`). The engine runs
this module as a child process (``engine.problem.catalog``), so that the engine never imports torch or user code.
"""

from __future__ import annotations

import contextlib
import ctypes
import inspect as python_inspect
import math
import os
import resource
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from engine.problem.failure import ProblemFailure, failure_of
from engine.problem.names import Names, assign_ids
from engine.problem.source import ProblemFileError, ProblemModule
from engine.problem.spec import DTYPE_BYTES, ProblemSpec, Role, ScalarSpec, TensorSpec
from engine.system.fast_start import uncollected
from engine.system.text_file import read_text

if TYPE_CHECKING:
    import torch

    from engine.problem.tracing.operators import Built, Traced

_MEMORY_LIMIT_BYTES = 4 << 30
_SMALL_BYTES = 256 << 20
"""Maximum total size, in bytes, of inputs and weights for a real run. Inspection runs a model of at most this size if
PyTorch cannot trace it.
"""
_PR_SET_PDEATHSIG = 1


class Job(Struct, frozen=True):
    """A file to inspect and its problem id. ``source``: text to inspect instead of the file's content."""

    id: str
    path: str
    source: str | None = None


class Inspected(Struct, frozen=True, omit_defaults=True):
    """One line of output, with either ``spec`` or ``failure``. ``index``: the job's position in the request."""

    index: int
    spec: ProblemSpec | None = None
    failure: ProblemFailure | None = None


class InspectionTimeout(BaseException):
    """The inspection of a file exceeded the time limit. This class is not an ``Exception``, so that no
    ``except Exception`` in the file catches it.
    """


def inspect_file(path: str | Path, problem_id: str, source: str | None = None) -> ProblemSpec:
    """Return the specification of the problem in ``path``. ``source``: text to inspect instead of the file's content.

    Fake tensors replace the model's weights and inputs, so problems of any size need little memory. Small models that
    PyTorch cannot trace run on real tensors instead. The specification's ``c_refusal`` says why a problem has no C
    interface. Raises whatever the file raises.
    """
    from torch._subclasses.fake_tensor import FakeTensorMode

    from engine.problem.tracing import operators

    path = Path(path)
    source = read_text(path) if source is None else source
    module = ProblemModule(source, str(path))
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    built = operators.build_fake(module, mode)
    names = Names()
    tensors = _input_specs(built, names)
    tensors += [_tensor_spec(tensor, "parameter" if parameter else "buffer", name, name, names)
                for name, tensor, parameter in built.weights]  # fmt: skip
    refusal = _refuse_arguments(built)
    traced: Traced | None = None
    try:
        traced = operators.trace(built, mode)
    except ProblemFileError:
        raise
    except Exception as error:
        if sum(tensor.numel() * tensor.element_size() for tensor in built.memory) <= _SMALL_BYTES:
            # A run on real tensors gives the shapes that kernels need, but not the operators that the playbook needs.
            # The run raises the model's own errors.
            try:
                traced = operators.run_small(module)
            except (MemoryError, RuntimeError) as failure:
                if not _lacks_memory_or_gpu(failure):
                    raise
        if isinstance(error, operators.DATA_DEPENDENT):
            refusal = refusal or "the model's shapes or control flow depend on the values of its inputs"
        elif traced is None:
            reason = _refuse_untraced(error, str(path))
            refusal = refusal or reason
    spec = ProblemSpec(
        id=problem_id,
        name=path.stem,
        path=str(path),
        source=source,
        tensors=tuple(tensors),
        scalars=_scalar_specs(built, names),
        c_refusal=refusal,
    )
    return spec if traced is None else _with_graph(spec, traced, names)


def _lacks_memory_or_gpu(failure: Exception) -> bool:
    """Return whether a real run failed because of inspection's memory limit or because inspection has no GPU."""
    words = str(failure)
    return isinstance(failure, MemoryError) or "can't allocate memory" in words or "'CPU' backend" in words


def _refuse_untraced(error: Exception, path: str) -> str:
    """Return why a model that PyTorch cannot trace, and that cannot run here, has no C interface. Raises ``error`` if
    the model may have raised it.
    """
    from engine.problem.tracing.operators import TooLongToTraceError

    if isinstance(error, TooLongToTraceError):
        return f"{error} and is too large to run during inspection"
    # PyTorch raises this exception for an operator without a fake implementation, but a model may also raise it.
    if isinstance(error, NotImplementedError) and not _is_raised_by_model(error, path):
        return f"PyTorch cannot trace one of the model's operators without data ({str(error).splitlines()[0]})"
    raise error


def _is_raised_by_model(error: NotImplementedError, path: str) -> bool:
    """Return whether the model's own code raised ``error``, or the model has no ``forward``."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    return not str(error) or last.name == "_forward_unimplemented" or last.filename == path


def _with_graph(spec: ProblemSpec, traced: Traced, names: Names) -> ProblemSpec:
    import torch

    from engine.problem.tracing.graph import count_flops, nodes_of, read_bytes

    refusal = spec.c_refusal
    given = [
        msgspec.structs.replace(tensor, mutated=True) if index in traced.mutated else tensor
        for index, tensor in enumerate(spec.tensors)
    ]
    returned = [leaf for leaf in traced.outputs if isinstance(leaf, torch.Tensor)]
    wanted = ["out"] if len(returned) == 1 else [f"out{index}" for index in range(len(returned))]
    outputs = [_tensor_spec(leaf, "output", name, "", names) for name, leaf in zip(wanted, returned, strict=True)]
    if not returned:
        refusal = refusal or "the model returns no tensor"
    elif len(returned) < len(traced.outputs):
        refusal = refusal or "the model returns a non-tensor value along with its tensors"
    if traced.random is not None:
        refusal = refusal or f"the model draws random numbers ({traced.random})"
    odd = next((tensor for tensor in (*given, *outputs) if tensor.dtype not in DTYPE_BYTES), None)
    if odd is not None:
        refusal = refusal or f"`{odd.name}` has dtype {odd.dtype}, which has no C type"
        sol_bytes = 0
    else:
        written = sum(tensor.nbytes for tensor in (*outputs, *(tensor for tensor in given if tensor.mutated)))
        read = sum(tensor.nbytes for tensor in given) if traced.graph is None else sum(read_bytes(traced.graph))
        sol_bytes = read + written
    return msgspec.structs.replace(
        spec,
        tensors=(*given, *outputs),
        c_refusal=refusal,
        sol_bytes=sol_bytes,
        flops=None if traced.graph is None else count_flops(traced.graph),
        graph=None if traced.graph is None else nodes_of(traced.graph, [tensor.name for tensor in given]),
        random=traced.random is not None,
    )


def _tensor_spec(tensor: torch.Tensor, role: Role, wanted: str, source_name: str, names: Names) -> TensorSpec:
    from engine.problem.tracing.graph import dtype_name

    shape = tuple(int(size) for size in tensor.shape)
    return TensorSpec(names.take_tensor(wanted, len(shape)), role, dtype_name(tensor.dtype), shape, source_name)


def _input_names(built: Built) -> list[str]:
    """Name each flattened input after its ``forward`` parameter. Inputs in a list or tuple also have a number in their
    names.
    """
    structure = built.structure
    # PyTorch 2.6 to 2.9 have no `children()`, and later versions warn about `children_specs`.
    arguments = structure.children() if hasattr(structure, "children") else structure.children_specs
    parameters = _parameter_names(type(built.model).forward, len(arguments), skip_self=True)
    names: list[str] = []
    for parameter, argument in zip(parameters, arguments, strict=True):
        count = argument.num_leaves
        names += [parameter] if argument.is_leaf() else [f"{parameter}_{index}" for index in range(count)]
    return names


def _parameter_names(function: Any, count: int, skip_self: bool) -> list[str]:
    """Return the names of the first ``count`` positional parameters. Arguments in ``*args`` have numbered names, such
    as ``args_0``.
    """
    kinds = python_inspect.Parameter
    parameters = list(python_inspect.signature(function).parameters.values())[1 if skip_self else 0 :]
    names = [p.name for p in parameters if p.kind in (kinds.POSITIONAL_ONLY, kinds.POSITIONAL_OR_KEYWORD)]
    rest = next((p.name for p in parameters if p.kind is kinds.VAR_POSITIONAL), "input")
    return [names[index] if index < len(names) else f"{rest}_{index - len(names)}" for index in range(count)]


def _input_specs(built: Built, names: Names) -> list[TensorSpec]:
    import torch

    return [
        _tensor_spec(leaf, "input", name, name, names)
        for name, leaf in zip(_input_names(built), built.leaves, strict=True)
        if isinstance(leaf, torch.Tensor)
    ]


def _scalar_specs(built: Built, names: Names) -> tuple[ScalarSpec, ...]:
    """Return the numbers that a kernel may need: the scalars of ``forward``, then the numbers in the init arguments."""
    named = list(zip(_input_names(built), built.leaves, strict=True))
    arguments = built.init_arguments
    for name, value in zip(_parameter_names(type(built.model).__init__, len(arguments), True), arguments, strict=True):
        if isinstance(value, list | tuple) and len(value) <= 8:
            named += [(f"{name}_{index}", item) for index, item in enumerate(value)]
        else:
            named.append((name, value))
    found = []
    for name, value in named:
        if isinstance(value, bool):
            found.append(ScalarSpec(names.take(name), "bool", value))
        elif isinstance(value, int) and abs(value) < 1 << 63:
            found.append(ScalarSpec(names.take(name), "long long", value))
        elif isinstance(value, float) and math.isfinite(value):
            found.append(ScalarSpec(names.take(name), "double", value))
    return tuple(found)


def _refuse_arguments(built: Built) -> str | None:
    import torch

    for name, leaf in zip(_input_names(built), built.leaves, strict=True):
        if isinstance(leaf, torch.Tensor):
            if leaf.layout is not torch.strided:
                return f"the input `{name}` is sparse"
            if not leaf.is_contiguous():
                return f"the input `{name}` is not contiguous"
        elif leaf is not None and not isinstance(leaf, bool | int | float | str):
            return f"the input `{name}` is neither a tensor nor a number"
    for name, tensor, _ in built.weights:
        if tensor.layout is not torch.strided or not tensor.is_contiguous():
            return f"the weight `{name}` is not contiguous"
    return None


# Command line.


@contextlib.contextmanager
def _time_limit(seconds: int) -> Iterator[None]:
    def expire(_signal: int, _frame: Any) -> None:
        raise InspectionTimeout

    previous = signal.signal(signal.SIGALRM, expire)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, previous)


def _inspect_job(index: int, job: Job, limit_s: int) -> Inspected:
    from engine.problem.model import defaults_kept

    try:
        with defaults_kept(), _time_limit(limit_s):
            return Inspected(index, spec=inspect_file(job.path, job.id, job.source))
    except KeyboardInterrupt:
        raise
    except InspectionTimeout as error:
        timeout = ProblemFileError(
            f"the inspection took longer than {limit_s} s",
            "create tensors with torch functions instead of Python loops",
        ).with_traceback(error.__traceback__)
        return Inspected(index, failure=failure_of(timeout, job.id, Path(job.path)))
    except BaseException as error:
        return Inspected(index, failure=failure_of(error, job.id, Path(job.path)))


def _confine(parent: int | None) -> None:
    """Limit memory, and make Linux kill this process when the engine ends, even if SIGKILL ends the engine."""
    resource.setrlimit(resource.RLIMIT_DATA, (_MEMORY_LIMIT_BYTES, _MEMORY_LIMIT_BYTES))
    if parent is not None:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            sys.exit("the engine ended before inspection began")


def _prepare() -> Callable[[Job], ProblemFailure] | None:
    """Import torch before any file's time limit starts.

    If the import fails, return a function that reports the failure. Otherwise, return None.
    """
    try:
        with uncollected():
            import torch

            import engine.problem.tracing.graph
            import engine.problem.tracing.operators  # noqa: F401
    except ImportError as error:
        message = f"cannot import PyTorch: {' '.join(str(error).split())[:300]}"
        remedy = "reinstall it: pip install --force-reinstall torch"
        return lambda job: ProblemFailure(job.id, job.path, message, remedy)
    torch.set_num_threads(1)
    return None


def main(argv: list[str]) -> int:
    """Run ``[--parent PID] [--limit SECONDS] (--jobs | PATH ...)``; ``--jobs`` reads a JSON list of jobs from stdin."""
    import argparse

    parser = argparse.ArgumentParser(prog="python -m engine.problem.inspection", description=__doc__)
    parser.add_argument(
        "--parent", type=int, help="process id of the parent; the inspection ends when the parent exits"
    )
    parser.add_argument("--limit", type=int, default=60, help="seconds per file")
    parser.add_argument("--jobs", action="store_true", help="read the jobs as JSON, [{id, path}], from standard input")
    parser.add_argument("paths", nargs="*")
    options = parser.parse_args(argv)
    _confine(options.parent)
    if options.jobs:
        jobs = msgspec.json.decode(sys.stdin.buffer.read(), type=list[Job])
    else:
        jobs = [Job(file.id, str(file.path)) for file in assign_ids([Path(path) for path in options.paths])]
    # Anything that a problem file prints, even from C code, goes to stderr, because stdout carries the protocol.
    results = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    broken = _prepare()
    for index, job in enumerate(jobs):
        answer = _inspect_job(index, job, options.limit) if broken is None else Inspected(index, failure=broken(job))
        results.write(msgspec.json.encode(answer) + b"\n")
        results.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
