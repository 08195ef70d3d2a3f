"""Select the elementary functions that a C++ kernel needs, for ``templates/_math.cpp.j2``.

The vector versions use only GCC's vector extensions and compile for any instruction set. Exponentials reduce their
argument to |r| <= ln(2) / 2 and use a minimax polynomial. The polynomial's relative error is about 1e-7 (degree 6) or
2e-7 (degree 5). The function ``erf`` uses Eigen's rational approximation, and ``log`` uses the series of 2 artanh((m -
1) / (m + 1)).
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

from engine.proposers.playbook.codegen.rendering import render

_EXP_COEFFICIENTS = {
    6: ("1.38145941e-3f", "8.36870752e-3f", "4.16683890e-2f", "1.66665221e-1f", "4.99999940e-1f"),
    5: ("8.31252430e-3f", "4.18901630e-2f", "1.66671142e-1f", "4.99992311e-1f"),
}
"""Coefficients of q in exp(r) = 1 + r + r^2 q(r), highest power first, by the degree of the whole polynomial."""
_LIBRARY = {
    "abs": "std::fabs", "floor": "std::floor", "ceil": "std::ceil", "round": "std::nearbyint", "trunc": "std::trunc",
    "exp": "std::exp", "expm1": "std::expm1", "log": "std::log", "log1p": "std::log1p", "sqrt": "std::sqrt",
    "tanh": "std::tanh", "erf": "std::erf", "sin": "std::sin", "cos": "std::cos", "tan": "std::tan",
    "atan": "std::atan", "sinh": "std::sinh", "cosh": "std::cosh",
}  # fmt: skip
_LIBRARY_BINARY = {"pow": "std::pow", "atan2": "std::atan2", "fmod": "std::fmod"}
_CALLS = {"exp": "exp_parts", "expm1": "exp_parts", "sigmoid": "exp", "tanh": "expm1", "log1p": "log"}
"""For each function, the function that its polynomial version calls."""
FUNCTIONS = frozenset(_LIBRARY) | {"sigmoid", "sign"}
"""Unary operations that kernels write as calls to ``<op>_of``."""
POLYNOMIAL = frozenset({"exp", "expm1", "sigmoid", "tanh", "erf", "log", "log1p"})
"""Functions with a vectorized polynomial. For most other functions, kernels call the C library once per lane."""
EXPONENTIALS = frozenset({"exp", "expm1", "sigmoid", "tanh"})
"""Functions whose polynomial is available in several degrees."""
_HELPERS = FUNCTIONS | frozenset(_LIBRARY_BINARY) | {"max", "min"}
_NEED_NO_ERRNO = frozenset({"sqrt", "rsqrt", "floor", "ceil", "round", "trunc"})


def needs_no_errno(ops: Iterable[str]) -> bool:
    """Return whether any of ``ops`` compiles to one instruction if the compiler may ignore errno and floating-point
    traps.
    """
    return not _NEED_NO_ERRNO.isdisjoint(ops)


def math_functions(ops: Iterable[str], *, wide: bool, polynomials: bool = False, degree: int = 6) -> str:
    """Return the source of the functions that ``ops`` need, for floats and, if ``wide``, also for vectors.

    Args:
        polynomials: Whether vectors use the playbook's polynomials instead of the C library.
        degree: The degree of the exponential's polynomial.
    """
    known = _HELPERS | {"select"} if wide else _HELPERS
    return _rendered(frozenset("sqrt" if op == "rsqrt" else op for op in ops) & known, wide, polynomials, degree)


@cache
def _rendered(ops: frozenset[str], wide: bool, polynomials: bool, degree: int) -> str:
    if not ops:
        return ""
    own = POLYNOMIAL if polynomials else frozenset()
    functions: dict[str, None] = {}

    def add(name: str) -> None:
        if name not in functions:
            if name in own and name in _CALLS:
                add(_CALLS[name])
            functions[name] = None

    for op in sorted(ops):
        add(op)
    return render(
        "_math.cpp.j2",
        functions=list(functions),
        polynomials=own,
        wide=wide,
        exp_coefficients=_EXP_COEFFICIENTS[degree],
        library=_LIBRARY,
        library_binary=_LIBRARY_BINARY,
    )
