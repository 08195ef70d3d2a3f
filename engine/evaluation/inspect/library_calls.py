"""Detect kernels that delegate their work to a library.

Threat ``library``: rewarded for short times, a language model calls cuBLAS, MKL, NumPy or PyTorch instead of writing a
kernel. Such calls take many forms, so each check inspects the code that ran, regardless of its caller.

For compiled languages, the checks inspect imported symbols, libraries that the file may open, and the files mapped into
the process after its run. For the compiled extensions of a ``.py`` kernel, the checks inspect imported symbols and the
libraries that each file may open. For ``ctypes``, the interpreter reports the libraries that the kernel opens and the
functions that it looks up. On a CPU, the checks time PyTorch's operators in all threads, and sample which files contain
the running code. On a GPU, the checks time all kernels of the process; kernels that the module compiled count as its
own.

:mod:`engine.evaluation.inspect.work` sets the allowed share of library work. These checks miss a library that a kernel
opens and closes within one call, and code that runs only between checks.
"""

from __future__ import annotations

import ast
import contextlib
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from engine.evaluation.build.python_modules import EXTENSIONS
from engine.evaluation.correctness.trials import JudgedProblem
from engine.evaluation.inspect import elf, own_kernels, work
from engine.evaluation.inspect.work import LibraryWork, Ran
from engine.evaluation.judge_policy import POLICY
from engine.evaluation.rejection import Rejected
from engine.evaluation.sandbox.module_runner import ModuleRunner
from engine.evaluation.sandbox.runner import Runner

PATTERN = "calls a library"
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
"""Entry points of PyTorch's operators that bypass the dispatcher, so that the profiler does not see them."""
_TORCH_FILE = re.compile(r"lib(?:torch|c10)")
_PACKAGE = re.compile(r"/(?:site|dist)-packages/([^/]+)/")
_NOT_FOREIGN = ("torch", "functorch", "triton")
"""Packages that are not foreign libraries, because their code runs with every kernel. For PyTorch, the profiler
measures each operator instead.
"""
_OPENERS = ("dlopen", "dlmopen", "__libc_dlopen_mode", "dlsym", "dlvsym")
_OPENED = re.compile(_FILE.pattern.encode()), re.compile(rb"\b(?:cublas[A-Z]\w+|cblas_\w+|[sd]gemm_?)\b")
_LIBRARY = POLICY.library


class Libraries:
    """One kernel's library use. The checks raise ``Rejected`` for a kernel that hides its library calls.

    ``refuse``: whether the checks also reject a kernel that delegates its work to a library. Otherwise, the verdict
    only names the library (``flags``).
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
        """Inspect the symbols in the built files, and a ``.py`` kernel's source, before anything runs."""
        if not self._module:
            self._found(named_in(self._kernel))
            return
        self._found(dict.fromkeys(name for file in self._compiled() for name in named_in(file, with_torch=True)))
        if _uses_torch_compile(self._source()):
            self._found(["torch.compile"])

    def before(self, runner: Runner) -> None:
        """Before the process loads the kernel, record whether this machine permits inspection of the process."""
        self._readable = runner.mapped() is not None

    def look_at_process(self, runner: Runner) -> None:
        """Inspect the files that are mapped into the process after its run.

        Python modules are exempt, because PyTorch itself maps libraries.
        """
        if self._module or not self._readable:
            return
        mapped = runner.mapped()
        if mapped is None:
            raise Rejected("forbidden", PATTERN, "the kernel hides the libraries that its process has loaded")
        self._found(sorted(name for name in mapped if _FILE.match(name)))

    def look_at_operators(self, runner: Runner, problem: JudgedProblem) -> None:
        """Call a ``.py`` kernel a few more times and inspect the code that runs."""
        if not isinstance(runner, ModuleRunner):
            return
        ran = runner.what_ran(problem.call_seed())
        if ran is None and runner.profiler_works(problem):
            raise Rejected("forbidden", PATTERN, "the kernel prevents PyTorch's profiler from working")
        if ran is None:
            self._said[
                "PyTorch's profiler does not work on this machine, so the judge did not check for library calls"
            ] = None
            return
        self._found(_looked_up(ran))
        self._weigh(self._on_gpu(ran) if problem.device.cuda else self._on_cpu(runner, ran, problem))

    def _on_cpu(self, runner: ModuleRunner, ran: Ran, problem: JudgedProblem) -> LibraryWork:
        samples, compiled = runner.sampled_code(), bool(self._compiled())
        if samples is None:
            self._said[
                "this machine does not let the judge inspect the kernel's process, so the judge checked only for "
                "PyTorch calls"
            ] = None
        elif samples.total() < _LIBRARY.least_samples:
            self._said[
                "the judge collected too few samples of the running code, so it checked only for PyTorch calls"
            ] = None
        is_pytorch = (lambda _: False) if self._uses_sleef() else _is_pytorch
        code = work.shares_of(samples, is_pytorch, library_of) if samples is not None else None
        found = work.on_cpu(ran, code, compiled)
        for _ in range(_LIBRARY.more_calls if found.too_much else 0):
            if (another := runner.what_ran(problem.call_seed())) is not None:
                ran = work.least(ran, another)
                found = work.on_cpu(ran, code, compiled)
        return found

    def _on_gpu(self, ran: Ran) -> LibraryWork:
        if not ran.kernels:
            raise Rejected("forbidden", PATTERN, "the module hides its GPU kernels from the profiler")
        return work.on_gpu(ran, own_kernels.of(self._source(), self._compiled()).__contains__)

    def _weigh(self, found: LibraryWork) -> None:
        if found.too_much:
            self._found(found.names, f" ({found.share:.0%} of the work)")
        elif found.names:
            self._said[f"the module calls {', '.join(found.names)} in addition to its own kernels"] = None

    def _found(self, names: Iterable[str], share: str = "") -> None:
        names = list(names)
        if not names:
            return
        said = f"{PATTERN}: {_listed(names)}{share}"
        if self._refuse:
            raise Rejected("library", PATTERN, f'{said}; to accept library calls, set evaluation.libraries = "label"')
        self._said[said] = None

    def _compiled(self) -> list[Path]:
        """Return the libraries that the module compiled, which contain the module's GPU code."""
        return sorted((self._kernel.parent / EXTENSIONS).rglob("*.so"))

    def _uses_sleef(self) -> bool:
        """Return whether an extension calls PyTorch's vector math library, which PyTorch's own headers use."""
        for file in self._compiled():
            with contextlib.suppress(*elf.FAULTS):
                if any(name.startswith("Sleef_") for name in elf.symbols(file.read_bytes()).imported):
                    return True
        return False

    def _source(self) -> str:
        return self._kernel.read_text(errors="replace")


def named_in(library: Path, with_torch: bool = False) -> list[str]:
    """Return the libraries and functions that the file imports. If the file imports functions that open libraries, the
    result includes the libraries and functions that the file names.

    ``with_torch``: whether the file is a PyTorch extension. An extension may use tensors, but not operators that the
    profiler misses.
    """
    data = library.read_bytes()
    try:
        needed = elf.symbols(data)
    except elf.FAULTS:
        return []
    files = [name for name in needed.libraries if _FILE.match(name)]
    symbols = [name for name in needed.imported if _SYMBOL.match(name) or _TORCH_SYMBOL.match(name)]
    opened: list[str] = []
    if with_torch:
        files = [name for name in files if not _TORCH_FILE.match(name)]
    if any(name in _OPENERS for name in needed.imported):
        words = b"\0".join(one.content for one in elf.sections(data) if len(one.content) <= _LIBRARY.section_bytes)
        opened = [found.decode(errors="replace") for pattern in _OPENED for found in pattern.findall(words)]
        if with_torch:  # These are the file's regular dependencies.
            opened = [name for name in opened if not _TORCH_FILE.match(name)]
    return list(dict.fromkeys([*files, *symbols, *opened]))


def library_of(file: str) -> str | None:
    """Return the Python package or math library to which a mapped file belongs, or None for system files and
    PyTorch.
    """
    name, package = file.rpartition("/")[2], _PACKAGE.search(file)
    if _FILE.match(name):
        return None if _TORCH_FILE.match(name) else name
    return f"{package[1]} ({name})" if package and package[1] not in _NOT_FOREIGN else None


def _is_pytorch(file: str) -> bool:
    """Return whether the file contains PyTorch's operators, not only code that unpacks arguments or allocates
    memory.
    """
    return file.rpartition("/")[2].startswith("libtorch_cpu")


def _looked_up(ran: Ran) -> list[str]:
    """Return the libraries that the module opened through ``ctypes``, and the library functions that it looked up."""
    found: dict[str, None] = {}
    for path, function in ran.looked_up:
        file = path.rpartition("/")[2]
        if _FILE.match(file) or _SYMBOL.match(function):
            found[f"{function} in {file}" if file and function else function or file] = None
    return list(found)


def _uses_torch_compile(source: str) -> bool:
    try:
        nodes = ast.walk(ast.parse(source))
    except (SyntaxError, ValueError):
        return False
    return any(isinstance(node, ast.Attribute) and ast.unparse(node) == "torch.compile" for node in nodes)


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _LIBRARY.named} more" if len(names) > _LIBRARY.named else ""
    return ", ".join(names[: _LIBRARY.named]) + more
