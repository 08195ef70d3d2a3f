"""Does a kernel leave its work to a library? Names of what it calls, and whether it still counts as a kernel.

For the C forms: what the library file takes from others, names of libraries that it could open while it runs, and what
is mapped into its process after it has run. For ``.py`` kernels: the same of all that they have compiled, and the
operators of PyTorch that a call used for work, beside those of the reference.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from engine.evaluation import elf
from engine.evaluation.module_runner import ModuleRunner
from engine.evaluation.modules import EXTENSIONS
from engine.evaluation.rejected import Rejected
from engine.evaluation.sandbox import Runner
from engine.evaluation.trials import JudgedProblem

PATTERN = "calls a library"
CHECK = "libraries"
_NAMES = (
    "cublas|cudnn|cusparse|cusolver|cufft|curand|cutensor|nvinfer|npp|nvjpeg|nvpl|mkl|mklml|openblas|scipy_openblas|blas|"
    "cblas|blis|flexiblas|atlas|satlas|tatlas|lapack|dnnl|mkldnn|fftw|gsl|armpl|torch|c10|XNNPACK|onnxruntime|tensorflow"
)
_FILE = re.compile(rf"lib(?:{_NAMES})[\w+-]*(?:\.[\w+-]+)*")
_SYMBOL = re.compile(
    r"(?:cublas|cudnn|cusparse|cusolver|cufft|curand|cutensor)[A-Z]\w*$|(?:cblas|mkl|MKL|dnnl|openblas|LAPACKE)_\w+$|"
    r"[sdcz]?(?:gemm|gemv|symm|syrk|trsm|ger)_(?:64_)?$"
)
_TORCH_SYMBOL = re.compile(r"_ZN2at6native\w+|_ZN2at3cpu\w+")
"""PyTorch's operators without their dispatcher, where its profiler does not see them."""
_TORCH_FILE = re.compile(r"lib(?:torch|c10)")
_OPENERS = ("dlopen", "dlmopen", "__libc_dlopen_mode", "dlsym", "dlvsym")
_OPENED = re.compile(_FILE.pattern.encode()), re.compile(rb"\b(?:cublas[A-Z]\w+|cblas_\w+|[sd]gemm_?)\b")
_WITH_WORDS_BYTES = 1 << 18
"""Sections of up to this size are searched for names; the code of CUDA's runtime and of the device is larger."""
_SHOWN = 6


class Libraries:
    """What one kernel uses, as it comes to light. All methods raise ``Rejected`` where ``refuse`` and it is too much.

    ``refuse``: a kernel that calls a library does not count; else it is only labelled (``flags``).
    """

    def __init__(self, kernel: Path, refuse: bool) -> None:
        self._kernel, self._refuse = kernel, refuse
        self._module = kernel.suffix == ".py"
        self._readable = False
        self._said: dict[str, None] = {}

    @property
    def flags(self) -> tuple[str, ...]:
        return tuple(self._said)

    def look_at_files(self) -> None:
        """What its machine code names; nothing has run yet."""
        if not self._module:
            self._found(named_in(self._kernel))
            return
        compiled = sorted((self._kernel.parent / EXTENSIONS).rglob("*.so"))
        self._found(dict.fromkeys(name for file in compiled for name in named_in(file, with_torch=True)))
        if _uses_torch_compile(self._kernel.read_text(errors="replace")):
            self._found(["torch.compile"])

    def before(self, runner: Runner) -> None:
        """Its process has started and not seen it yet."""
        self._readable = runner.mapped() is not None

    def look_at_process(self, runner: Runner) -> None:
        """After it has run: which files are mapped into its process. PyTorch maps its own into that of a module."""
        if self._module or not self._readable:
            return
        mapped = runner.mapped()
        if mapped is None:
            raise Rejected("forbidden", PATTERN, "hides which libraries are mapped into its process", CHECK)
        self._found(sorted(name for name in mapped if _FILE.match(name)))

    def look_at_operators(self, runner: Runner, problem: JudgedProblem) -> None:
        """One more call of a ``.py`` kernel: what PyTorch computes in it."""
        if not isinstance(runner, ModuleRunner):
            return
        called, own = runner.operators(problem.call_seed()), problem.operators
        if own is None:
            self._said["PyTorch's profiler does not start here: its operators were not looked for"] = None
            return
        if called is None:
            raise Rejected("forbidden", PATTERN, "keeps PyTorch's profiler from looking", CHECK)
        if not called:
            return
        replaced, others = own - set(called), [name for name in called if name not in own]
        if replaced and not others:
            self._said[f"calls PyTorch's {_listed(called)} beside its own kernels"] = None
        else:
            self._found(others or called, "calls PyTorch's operators")

    def _found(self, names: Iterable[str], what: str = PATTERN) -> None:
        names = list(names)
        if not names:
            return
        said = f"{what}: {_listed(names)}"
        if self._refuse:
            raise Rejected("library", PATTERN, f'{said}; counts with evaluation.libraries = "label" only', CHECK)
        self._said[said] = None


def named_in(library: Path, with_torch: bool = False) -> list[str]:
    """Libraries and their functions that the file needs, or names beside the means to open them while it runs.

    ``with_torch``: it is an extension of PyTorch, whose tensors it may use, but no operators that the profiler misses.
    """
    data = library.read_bytes()
    try:
        needed = elf.imports(data)
    except elf.FAULTS:
        return []
    files = [name for name in needed.libraries if _FILE.match(name)]
    symbols = [name for name in needed.symbols if _SYMBOL.match(name) or _TORCH_SYMBOL.match(name)]
    opened: list[str] = []
    if with_torch:
        files = [name for name in files if not _TORCH_FILE.match(name)]
    elif any(name in _OPENERS for name in needed.symbols):
        words = b"\0".join(one.content for one in elf.sections(data) if len(one.content) <= _WITH_WORDS_BYTES)
        opened = [found.decode(errors="replace") for pattern in _OPENED for found in pattern.findall(words)]
    return list(dict.fromkeys([*files, *symbols, *opened]))


def _uses_torch_compile(source: str) -> bool:
    try:
        nodes = ast.walk(ast.parse(source))
    except (SyntaxError, ValueError):
        return False
    return any(isinstance(node, ast.Attribute) and ast.unparse(node) == "torch.compile" for node in nodes)


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
