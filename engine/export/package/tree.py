"""The files of an exported package. For each kernel, these are a module, the reference, the source and the library."""

from __future__ import annotations

import ast
import keyword
import platform
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from engine.export import ExportError
from engine.problem.c_header import derive_header
from engine.problem.spec import MODULES, Language, ProblemSpec, TensorSpec
from engine.system.text_file import read_text

RUNTIME = "_runtime"
VERSION = "0.1.0"
CPU_FEATURES = re.compile(r"avx|amx|fma|bmi|sse|ssse|f16c|abm|movbe|popcnt|vaes|vpclmul|gfni|sha|adx|asimd|sve|fphp")
"""Processor features that a compiler may use with ``-march=native``."""
_NAME = r"[A-Za-z][A-Za-z0-9_]*"
_RESERVED = {"self", "Tensor"}
_USED = (RUNTIME, "torch", "OPERATOR", "BACKWARD")
"""Names that a kernel's module uses for its own code."""


class PackagedKernel(Struct, frozen=True):
    """A kernel to export. ``library``: the built library. ``arch``: the library's GPU architecture, or "".

    ``features``: the processor features that a C++ kernel may need. ``backward``: id of the problem with the backward
    kernel, or "".
    """

    problem: ProblemSpec
    language: Language
    source: str
    about: str
    library: bytes
    arch: str = ""
    features: frozenset[str] = frozenset()
    backward: str = ""


def check_name(package: str) -> None:
    """Raise ``ExportError`` if ``package`` cannot be the name of a Python package."""
    if not re.fullmatch(_NAME, package) or keyword.iskeyword(package):
        valid = re.sub(r"\W+", "_", package, flags=re.ASCII).strip("_")
        near = valid if re.fullmatch(_NAME, valid) and not keyword.iskeyword(valid) else "fast_kernels"
        raise ExportError(
            f"{package} is not a valid name for a Python package; use letters, digits and _, such as {near}"
        )


def check_problem(problem: ProblemSpec, language: Language) -> None:
    """Raise ``ExportError`` if no package can contain a kernel in ``language`` for ``problem``."""
    if language in MODULES:
        raise ExportError(
            f"{problem.id}: a package contains built libraries, so it cannot contain a Python or Triton kernel; export "
            "its source: kernel-tui export SESSION VARIANT -o FILE.py"
        )
    if problem.c_refusal is not None:
        raise ExportError(f"{problem.id} accepts Python kernels only: {problem.c_refusal}")
    if not problem.inputs:
        raise ExportError(f"{problem.id}: forward takes no tensor, so there is no operator to register")
    if changed := [tensor.source_name for tensor in problem.tensors if tensor.mutated]:
        raise ExportError(
            f"{problem.id}: the model changes its buffer {changed[0]}, but packaged operators cannot change buffers; "
            "export a KernelBench solution instead: kernel-tui export SESSION VARIANT"
        )


def package_tree(package: str, kernels: Sequence[PackagedKernel]) -> dict[str, bytes]:
    """Return the package's files by path. Raises ``ExportError``."""
    check_name(package)
    names = _names(kernels)
    order = sorted(kernels, key=lambda one: bool(one.backward))  # An operator must come after its backward operator.
    files: dict[str, str | bytes] = {
        "pyproject.toml": _pyproject(package, kernels),
        "setup.cfg": f"[bdist_wheel]\nplat_name = linux_{platform.machine()}\npython_tag = py3\n",
        "README.md": _readme(package, kernels, names),
        f"{package}/__init__.py": _init(package, kernels, names),
        f"{package}/{RUNTIME}.py": read_text(_runtime_file()),
        f"{package}/py.typed": "",
    }
    for kernel in order:
        check_problem(kernel.problem, kernel.language)
        name = names[kernel.problem.id]
        files[f"{package}/{name}.py"] = _module(package, kernel, names)
        files[f"{package}/{name}_reference.py"] = kernel.problem.source
        files[f"{package}/lib{name}.so"] = kernel.library
        files[f"{package}/source/{name}.{kernel.language}"] = kernel.source
        files[f"{package}/source/{name}.h"] = derive_header(kernel.problem, kernel.language)
    return {path: text if isinstance(text, bytes) else text.encode() for path, text in files.items()}


def _runtime_file() -> Path:
    return Path(__file__).with_name("runtime.py")


def _names(kernels: Sequence[PackagedKernel]) -> dict[str, str]:
    """Return each problem's name in the package. Raises ``ExportError`` if the package would contain a name twice."""
    owners = dict.fromkeys(_USED, "the package itself")
    found: dict[str, str] = {}
    for kernel in kernels:
        problem = kernel.problem.id
        if problem in found:
            raise ExportError(
                f"{problem}: a package contains only one kernel per problem; export other kernels separately"
            )
        name = found[problem] = _identifier(problem)
        for made in (name, _class_name(name), f"{name}_reference"):
            if made in owners:
                raise ExportError(
                    f"{problem}: the package would contain the name {made} twice, because of {owners[made]}; "
                    "export to different packages, or rename the problem's file"
                )
            owners[made] = problem
    return found


def _identifier(name: str) -> str:
    found = re.sub(r"\W", "_", name)
    return f"kernel_{found}" if found[0].isdigit() or keyword.iskeyword(found) else found


def _class_name(name: str) -> str:
    found = "".join(part[:1].upper() + part[1:] for part in name.split("_") if part)
    return found if found and found != name else f"{found}Module"


def _module(package: str, kernel: PackagedKernel, names: Mapping[str, str]) -> str:
    problem, name = kernel.problem, names[kernel.problem.id]
    forward = _forward(problem)
    constants = _constants(problem, forward)
    optional = _optional(forward)
    if kernel.language == "cpp":
        target = f'Target("cpu", features=frozenset({sorted(kernel.features)!r}))'
    else:
        target = f'Target("cuda", capability={_capability(kernel.arch)})'
    backward, imported = "", ""
    if kernel.backward:
        imported = f"from .{names[kernel.backward]} import OPERATOR as BACKWARD\n"
        backward = "\n    backward=BACKWARD,"
    weights = [f'self.get_{tensor.role}("{tensor.source_name}")' for tensor in problem.weights]
    given = [tensor.source_name for tensor in problem.inputs]
    call = f"torch.ops.{package}.{name}({', '.join([*given, *weights])})"
    plain = ", ".join(_safe(tensor) for tensor in (*problem.inputs, *problem.weights))
    parameters = ", ".join(f"{_safe(tensor)}: torch.Tensor" for tensor in (*problem.inputs, *problem.weights))
    passed = ", ".join(one.arg for one in forward.args.args[1:])
    other = "not self._built_for"
    if constants:
        other += f" or ({', '.join(constants)},) != ({', '.join(map(repr, constants.values()))},)"
    tensors = {tensor.source_name for tensor in problem.inputs}
    for one in optional:  # The kernel was compiled with the default.
        if one in tensors:
            other += f" or not isinstance({one}, torch.Tensor)"
        elif one not in constants:
            other += f" or type({one}) is not type({_default(one)}) or {one} != {_default(one)}"
    defaults = ""
    if optional:
        parameters_of = f"signature({name}_reference.Model.forward).parameters"
        defaults = f"\n_DEFAULTS = {{name: one.default for name, one in {parameters_of}.items()}}"
    return f'''"""{_docstring(kernel.about)}"""

from __future__ import annotations

{"from inspect import signature" + chr(10) if optional else ""}from pathlib import Path
from typing import Any

import torch

from . import {name}_reference
from .{RUNTIME} import Operator, Target, TensorInfo, same_arguments
{imported}
OPERATOR = Operator(
    "{package}",
    "{name}",
    library=Path(__file__).with_name("lib{name}.so"),
    target={target},
    inputs=[{_infos(problem.inputs)}],
    weights=[{_infos(problem.weights)}],
    outputs=[{_infos(problem.outputs)}],
    constants={constants!r},
    reference={name}_reference,{backward}
){defaults}


def {name}({parameters}) -> Any:
    """Run the kernel, or the reference for other shapes, dtypes and devices. Arguments: inputs, then weights."""
    return torch.ops.{package}.{name}({plain})


class {_class_name(name)}({name}_reference.Model):  # type: ignore[misc,name-defined]
    """The reference model with the kernel as its ``forward``. It accepts the reference's ``state_dict``.

    Without arguments, the constructor uses the arguments that the kernel was compiled for. With other arguments,
    ``forward`` runs the reference.
    """

    def __init__(self, *arguments: Any, **named: Any) -> None:
        built = getattr({name}_reference, "get_init_inputs", list)()
        arguments = arguments if arguments or named else tuple(built)
        super().__init__(*arguments, **named)
        self._built_for = not named and same_arguments(arguments, built)

    def forward({_signature(forward)}):
        if {other}:
            return super().forward({passed})
        return {call}
'''


def _docstring(text: str) -> str:
    return text.replace("\\", "/").replace('"""', "'''")


def _infos(tensors: Sequence[TensorSpec]) -> str:
    lines = [f"TensorInfo({_safe(one)!r}, {one.source_name!r}, torch.{one.dtype}, {one.shape!r})" for one in tensors]
    return "".join(f"\n        {line}," for line in lines) + ("\n    " if lines else "")


def _safe(tensor: TensorSpec) -> str:
    """Return the tensor's name in the operator's schema and in Python."""
    taken = keyword.iskeyword(tensor.name) or tensor.name in _RESERVED
    return f"{tensor.name}_" if taken else tensor.name


def _capability(arch: str) -> tuple[int, int]:
    found = re.fullmatch(r"sm_(\d+)(\d)[af]?", arch)
    if found is None:
        raise ExportError(f"{arch} is not a GPU architecture; name an architecture, for example: --arch sm_90a")
    return int(found[1]), int(found[2])


def _forward(problem: ProblemSpec) -> ast.FunctionDef:
    """Return the reference's ``forward``. Raises ``ExportError``."""
    models = [one for one in ast.parse(problem.source).body if isinstance(one, ast.ClassDef) and one.name == "Model"]
    for node in models[-1].body if models else ():
        if isinstance(node, ast.FunctionDef) and node.name == "forward":
            names = {one.arg for one in node.args.args}
            if node.args.posonlyargs or node.args.kwonlyargs or node.args.vararg or node.args.kwarg:
                raise ExportError(
                    f"{problem.id}: forward takes *args, **kwargs, or positional-only or keyword-only arguments; "
                    "to export the kernel, use plain arguments"
                )
            if missing := sorted({tensor.source_name for tensor in problem.inputs} - names):
                raise ExportError(
                    f"{problem.id}: forward takes {missing[0]} inside a list, but operators take only plain tensors; "
                    "to export the kernel, make it a plain argument"
                )
            return node
    raise ExportError(f"{problem.path}: this file contains no class Model with a forward method; add one to the file")


def _constants(problem: ProblemSpec, forward: ast.FunctionDef) -> dict[str, int | float | bool]:
    """Return the numeric arguments of ``forward``, which are constants in the kernel."""
    tensors = {tensor.source_name for tensor in problem.inputs}
    scalars = {scalar.name: scalar.value for scalar in problem.scalars}
    optional = _optional(forward)
    found: dict[str, int | float | bool] = {}
    for one in forward.args.args[1:]:
        if one.arg in tensors:
            continue
        if one.arg in scalars:
            found[one.arg] = scalars[one.arg]
        elif one.arg not in optional:
            raise ExportError(
                f"{problem.id}: argument {one.arg} of forward is neither a tensor nor a number, so operators cannot "
                "take it"
            )
    return found


def _optional(forward: ast.FunctionDef) -> list[str]:
    """Return the arguments of ``forward`` that have defaults."""
    arguments = [one.arg for one in forward.args.args]
    return arguments[len(arguments) - len(forward.args.defaults) :]


def _default(argument: str) -> str:
    """Return an expression that looks up the default of an argument of ``forward`` in the package's reference."""
    return f'_DEFAULTS["{argument}"]'


def _signature(forward: ast.FunctionDef) -> str:
    """Return the arguments of ``forward`` as text, without annotations."""
    optional = _optional(forward)
    arguments = [one.arg for one in forward.args.args]
    return ", ".join(f"{one}={_default(one)}" if one in optional else one for one in arguments)


def _init(package: str, kernels: Sequence[PackagedKernel], names: Mapping[str, str]) -> str:
    found = [names[kernel.problem.id] for kernel in kernels]
    imports = "\n".join(f"from .{name} import {_class_name(name)}, {name}" for name in found)
    every = ", ".join(repr(one) for name in found for one in (_class_name(name), name))
    return f'''"""PyTorch operators with kernels that kernel-tui found. For help: ``help({package}.{found[0]})``."""

{imports}

__all__ = [{every}]
__version__ = "{VERSION}"
'''


def _pyproject(package: str, kernels: Sequence[PackagedKernel]) -> str:
    problems = ", ".join(kernel.problem.id for kernel in kernels)
    return f'''[build-system]
requires = ["setuptools>=70.1"]
build-backend = "setuptools.build_meta"

[project]
name = "{package.replace("_", "-")}"
version = "{VERSION}"
description = "PyTorch operators with kernels for {problems}"
readme = "README.md"
requires-python = ">=3.10"
dependencies = ["torch>=2.6"]

[tool.setuptools]
packages = ["{package}"]

[tool.setuptools.package-data]
{package} = ["*.so", "py.typed", "source/*"]
'''


def _readme(package: str, kernels: Sequence[PackagedKernel], names: Mapping[str, str]) -> str:
    rows = []
    for kernel in kernels:
        name = names[kernel.problem.id]
        inputs = "; ".join(f"{one.name} {one.dtype} {list(one.shape)}" for one in kernel.problem.inputs)
        target = kernel.arch or "the build machine's processor"
        rows.append(f"| `{package}.{name}` | {inputs} | {target} | {_docstring(kernel.about)} |")
    return f"""# {package}

PyTorch operators with kernels that kernel-tui found. The package does not require a compiler.

| operator | tensors | built for | kernel |
|---|---|---|---|
{chr(10).join(rows)}

For other shapes, dtypes and devices, an operator runs its reference model. `torch.compile(fullgraph=True)` works. An
operator without a backward kernel raises an error when autograd computes gradients.
"""
