"""Measure the size of the judge, and count its constants outside ``JudgePolicy``.

    python benchmarks/judge_size.py [--limit-constants 30] [--root DIRECTORY]

The script counts the files in ``engine/`` that the modules in ``ENTRIES`` import, directly or indirectly. It also
counts the C++ sources that these files name. The script prints a table of lines, numeric literals and constants. Exit
status 1: the judge has more constants than ``--limit-constants``. Exit status 2: a module in ``ENTRIES`` does not
exist.

A constant is an assignment at module or class level with a number in its value. The count excludes enumeration members,
fields that default to zero, and the constants in ``POLICY``. "names" counts the names of constants: ``_A, _B = 1, 2``
is one constant with two names.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

ENTRIES = (
    "engine.evaluation.judge.start",
    "engine.evaluation.judge.server",
    "engine.evaluation.sandbox.inside.__main__",
    "engine.evaluation.sandbox.inside.python_kernel.zygote",
    "engine.evaluation.sandbox.inside.python_kernel.module_builder",
    "engine.evaluation.timing.baselines",
    "engine.evaluation.build.compilers",
    "engine.evaluation.build.python_modules",
)
"""Modules that run as processes of the judge or build its libraries. A package includes its ``__main__``."""
POLICY = "engine/evaluation/judge_policy.py"
"""The file of ``JudgePolicy``, which holds the judge's constants. Constants in this file do not count toward the limit.
"""
WITHIN = "engine"
FOLDER = "engine/evaluation"
"""Folder whose total size the script also prints, including files that no module imports."""
CPP_SUFFIXES = (".cpp", ".cu", ".h")
_ENUMERATIONS = {"Enum", "IntEnum", "StrEnum", "Flag", "IntFlag"}
_CPP_TEXT = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\'', re.DOTALL)
_CPP_NUMBER = re.compile(r"(?<![\w.])(?:0[xX][\da-fA-F]+|\d[\d']*(?:\.\d*)?(?:[eE][+-]?\d+)?|\.\d+)\w*")


@dataclass(frozen=True)
class Size:
    """Size of one or more files."""

    lines: int = 0
    literals: int = 0
    constants: int = 0
    names: int = 0

    def __add__(self, other: Size) -> Size:
        return Size(
            self.lines + other.lines,
            self.literals + other.literals,
            self.constants + other.constants,
            self.names + other.names,
        )


def size_of(path: Path) -> Size:
    """Return the size of a Python or C++ file. For C++, the script does not separate constants from other literals."""
    text = path.read_text()
    lines = len(text.splitlines())
    if path.suffix != ".py":
        return Size(lines, len(_CPP_NUMBER.findall(_CPP_TEXT.sub(" ", text))))
    tree = ast.parse(text)
    found = list(constants(tree))
    literals = sum(map(_is_number, ast.walk(tree)))
    return Size(lines, literals, len(found), sum(len(names) for names in found))


def constants(module: ast.Module) -> Iterator[list[str]]:
    """Return the names that each constant of a module binds."""
    for statement, within in _assignments(module, None):
        value = statement.value
        if value is None or not any(map(_is_number, ast.walk(value))):
            continue
        if isinstance(within, ast.ClassDef):
            is_field = isinstance(statement, ast.AnnAssign)
            if _is_enumeration(within) or (is_field and isinstance(value, ast.Constant) and value.value == 0):
                continue
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        yield [node.id for target in targets for node in ast.walk(target) if isinstance(node, ast.Name)]


def _assignments(
    block: ast.AST, within: ast.ClassDef | None
) -> Iterator[tuple[ast.Assign | ast.AnnAssign, ast.ClassDef | None]]:
    """Yield all assignments outside functions, each with its enclosing class."""
    for node in ast.iter_child_nodes(block):
        if isinstance(node, ast.Assign | ast.AnnAssign):
            yield node, within
        elif isinstance(node, ast.ClassDef):
            yield from _assignments(node, node)
        elif isinstance(node, ast.stmt | ast.excepthandler) and not isinstance(
            node, ast.FunctionDef | ast.AsyncFunctionDef
        ):
            yield from _assignments(node, within)


def _is_number(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and type(node.value) in (int, float, complex)


def _is_enumeration(definition: ast.ClassDef) -> bool:
    return any(ast.unparse(base).rpartition(".")[2] in _ENUMERATIONS for base in definition.bases)


def imported(root: Path, entries: Iterable[str]) -> set[Path]:
    """Return the files in ``WITHIN`` that ``entries`` import, including the entries. Raises ``FileNotFoundError``."""
    waiting: list[Path] = []
    for entry in entries:
        if not (files := list(_files(root, entry))) or _module_file(root, entry) is None:
            raise FileNotFoundError(f"{entry} is not a module below {root}; correct ENTRIES in {Path(__file__).name}")
        waiting += files
        main = root.joinpath(*entry.split("."), "__main__.py")
        waiting += [main] if main.is_file() else []
    seen: set[Path] = set()
    while waiting:
        path = waiting.pop()
        if path in seen or not path.is_relative_to(root / WITHIN):
            continue
        seen.add(path)
        if path.suffix == ".py":
            waiting += _imports(root, path)
    return seen


def _imports(root: Path, path: Path) -> Iterator[Path]:
    """Yield the imports of a file, including those in functions, and the C++ sources that it names."""
    for node in _run(ast.parse(path.read_text())):
        match node:
            case ast.Import(names=names):
                for alias in names:
                    yield from _files(root, alias.name, path)
            case ast.ImportFrom(module=module, names=names, level=level):
                if level:
                    package = path.parents[level - 1].relative_to(root).parts
                    module = ".".join([*package, *([module] if module else [])])
                assert module is not None
                yield from _files(root, module, path)
                for alias in names:
                    yield from _files(root, f"{module}.{alias.name}", path)
            case ast.Constant(value=str(text)) if text.endswith(CPP_SUFFIXES) and "\n" not in text:
                beside = path.parent / text
                if beside.is_file():
                    yield beside


def _run(node: ast.AST) -> Iterator[ast.AST]:
    """Yield all nodes except type-checking blocks."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and ast.unparse(child.test).rpartition(".")[2] == "TYPE_CHECKING":
            continue
        yield child
        yield from _run(child)


def _files(root: Path, module: str, importer: Path | None = None) -> Iterator[Path]:
    """Yield the files of ``module`` and of the packages that contain it. The runner imports neighboring modules by bare
    names.
    """
    parts = module.split(".")
    for count in range(1, len(parts) + 1):
        if (path := _module_file(root, ".".join(parts[:count]))) is not None:
            yield path
    if importer is not None and (path := _module_file(importer.parent, parts[0])) is not None:
        yield path


def _module_file(root: Path, module: str) -> Path | None:
    stem = root.joinpath(*module.split("."))
    return next((path for path in (stem.with_suffix(".py"), stem / "__init__.py") if path.is_file()), None)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--limit-constants", type=int, metavar="N", help="exit with status 1 for more than N constants")
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parents[1], help="the repository")
    arguments = parser.parse_args()
    root: Path = arguments.root.resolve()
    try:
        files = sorted(imported(root, ENTRIES))
    except FileNotFoundError as error:
        print(error, file=sys.stderr)
        return 2
    policy = root / POLICY
    total = Size()
    print(f"{'lines':>7} {'literals':>9} {'constants':>10} {'names':>6}  file")
    for path in files:
        size = size_of(path)
        is_policy = path == policy
        total += Size(size.lines, size.literals) if is_policy else size
        _print_row(size, f"{path.relative_to(root)}{'  (policy; its constants do not count)' if is_policy else ''}")
    _print_row(total, f"total: {len(files)} files that the judge, its runners and its builders import")
    whole = [path for path in sorted((root / FOLDER).rglob("*")) if path.suffix in (".py", *CPP_SUFFIXES)]
    size = sum(map(size_of, whole), Size())
    _print_row(size, f"all files of {FOLDER}, including the policy and unused files: {len(whole)} files")
    limit: int | None = arguments.limit_constants
    if limit is not None and total.constants > limit:
        print(f"{total.constants} constants outside {POLICY}; the limit is {limit}")
        return 1
    return 0


def _print_row(size: Size, label: str) -> None:
    print(f"{size.lines:7,} {size.literals:9,} {size.constants:10,} {size.names:6,}  {label}")


if __name__ == "__main__":
    sys.exit(main())
