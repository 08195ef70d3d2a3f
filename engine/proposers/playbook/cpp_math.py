"""The C++ helpers that emitted kernels are built from: lanes, loads and stores, elementary functions.

The vector versions use GCC's vector extensions alone, so the same text compiles for any instruction set. Only
what a kernel uses is emitted. Exponentials reduce to |r| <= ln(2) / 2 and use a minimax polynomial; relative error
about 1e-7 (degree 6) or 2e-7 (degree 5). erf is the rational approximation known from Eigen; log uses the series
of 2 artanh((m - 1) / (m + 1)).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

EXP_COEFFICIENTS = {
    6: ("1.38145941e-3f", "8.36870752e-3f", "4.16683890e-2f", "1.66665221e-1f", "4.99999940e-1f"),
    5: ("8.31252430e-3f", "4.18901630e-2f", "1.66671142e-1f", "4.99992311e-1f"),
}
"""exp(r) = 1 + r + r^2 q(r); coefficients of q, highest power first, by the degree of the whole polynomial."""

PREAMBLE = """\
typedef float vec __attribute__((vector_size(kLanes * sizeof(float))));
typedef int ivec __attribute__((vector_size(kLanes * sizeof(int))));
typedef float vec_unaligned __attribute__((vector_size(kLanes * sizeof(float)), aligned(4), may_alias));

struct One {};   // a loop step over a single element
struct Wide {};  // a loop step over kLanes elements

[[gnu::always_inline]] inline float load(One, const float* p) { return *p; }
[[gnu::always_inline]] inline vec load(Wide, const float* p) { return *reinterpret_cast<const vec_unaligned*>(p); }
[[gnu::always_inline]] inline vec splat(float value) { return value - vec{}; }
"""


@dataclass(frozen=True)
class Helper:
    """``text`` with ``needs``, the helpers it calls, which are emitted before it."""

    text: str
    needs: tuple[str, ...] = ()


def _exp(degree: int) -> str:
    first, *rest = EXP_COEFFICIENTS[degree]
    steps = "\n".join(f"  q = q * r + {coefficient};" for coefficient in rest)
    return f"""\
// x = n ln(2) + r: the pieces of exp(x) = 2^n (1 + r + r^2 q(r)). Clamped to where 2^(n - 1) is a float.
struct ExpParts {{ vec half_scale, tail; }};  // 2^(n - 1) and exp(r) - 1
[[gnu::always_inline]] inline ExpParts exp_parts(vec x) {{
  constexpr float kLow = -87.3365f, kHigh = 89.0f, kLog2e = 1.44269504f;
  constexpr float kLn2High = 0.693359375f, kLn2Low = -2.12194440e-4f;
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
  x = x < kLow ? splat(kLow) : x;
  x = x > kHigh ? splat(kHigh) : x;
  const vec shifted = x * kLog2e + kRound;
  const vec n = shifted - kRound;
  const vec r = (x - n * kLn2High) - n * kLn2Low;
  vec q = splat({first});
{steps}
  const ivec exponent = ((ivec)shifted - 0x4b400000 + 126) << 23;
  return {{(vec)exponent, r + r * r * q}};
}}
"""


_BODIES: dict[str, tuple[str, tuple[str, ...]]] = {
    "exp": (
        """\
[[gnu::always_inline]] inline vec exp_of(vec x) {
  const ExpParts parts = exp_parts(x);
  return (parts.half_scale + parts.half_scale * parts.tail) * 2.0f;
}
""",
        ("exp_parts",),
    ),
    "expm1": (
        """\
[[gnu::always_inline]] inline vec expm1_of(vec x) {
  const ExpParts parts = exp_parts(x);
  const vec scale = parts.half_scale * 2.0f;
  return scale * parts.tail + (scale - 1.0f);
}
""",
        ("exp_parts",),
    ),
    "sigmoid": (
        """\
[[gnu::always_inline]] inline vec sigmoid_of(vec x) { return 1.0f / (1.0f + exp_of(-x)); }
""",
        ("exp",),
    ),
    "tanh": (
        """\
// (exp(2x) - 1) / (exp(2x) + 1): expm1 keeps the digits near zero.
[[gnu::always_inline]] inline vec tanh_of(vec x) {
  constexpr float kSaturates = 10.0f;
  x = x > kSaturates ? splat(kSaturates) : x;
  const vec e = expm1_of(x + x);
  return e / (e + 2.0f);
}
""",
        ("expm1",),
    ),
    "erf": (
        """\
// An odd rational function of x on [-4, 4] (coefficients as in Eigen's generic erf).
[[gnu::always_inline]] inline vec erf_of(vec x) {
  constexpr float kSaturates = 4.0f;
  x = x > kSaturates ? splat(kSaturates) : x;
  x = x < -kSaturates ? splat(-kSaturates) : x;
  const vec s = x * x;
  vec p = s * -2.72614225801306e-10f + 2.77068142495902e-08f;
  p = p * s + -2.10102402082508e-06f;
  p = p * s + -5.69250639462346e-05f;
  p = p * s + -7.34990630326855e-04f;
  p = p * s + -2.95459980854025e-03f;
  p = p * s + -1.60960333262415e-02f;
  vec q = s * -1.45660718464996e-05f + -2.13374055278905e-04f;
  q = q * s + -1.68282697438203e-03f;
  q = q * s + -7.37332916720468e-03f;
  q = q * s + -1.42647390514189e-02f;
  return x * p / q;
}
""",
        (),
    ),
    "log": (
        """\
// x = 2^e m with m in [sqrt(1/2), sqrt(2)); log(m) = 2 artanh(s), s = (m - 1) / (m + 1).
[[gnu::always_inline]] inline vec log_of(vec x) {
  const ivec tiny = x < 1.17549435e-38f;
  const vec y = tiny ? x * 8388608.0f : x;
  const ivec bits = (ivec)y - 0x3f3504f3;
  const vec e = __builtin_convertvector(bits >> 23, vec) - (tiny ? splat(23.0f) : splat(0.0f));
  const vec m = (vec)((bits & 0x007fffff) + 0x3f3504f3);
  const vec s = (m - 1.0f) / (m + 1.0f);
  const vec s2 = s * s;
  vec p = s2 * 0.2222222222f + 0.2857142857f;
  p = p * s2 + 0.4f;
  p = p * s2 + 0.6666666667f;
  vec result = e * 0.693359375f + (s * s2 * p + (2.0f * s + e * -2.12194440e-4f));
  result = x == 0.0f ? splat(-INFINITY) : result;
  result = x < 0.0f ? splat(NAN) : result;
  return (x != x) | (x == INFINITY) ? x : result;
}
""",
        (),
    ),
    "log1p": (
        """\
// log(u) with u = 1 + x rounded, plus what the rounding lost.
[[gnu::always_inline]] inline vec log1p_of(vec x) {
  const vec u = 1.0f + x;
  const vec lost = (x - (u - 1.0f)) / u;
  return (u > 0.0f) & (u < INFINITY) ? log_of(u) + lost : log_of(u);
}
""",
        ("log",),
    ),
    "abs": (
        """\
[[gnu::always_inline]] inline vec abs_of(vec x) { return (vec)((ivec)x & 0x7fffffff); }
""",
        (),
    ),
}

_LIBM = {
    "abs": "std::fabs", "floor": "std::floor", "ceil": "std::ceil", "round": "std::nearbyint", "trunc": "std::trunc",
    "exp": "std::exp", "expm1": "std::expm1", "log": "std::log", "log1p": "std::log1p", "sqrt": "std::sqrt",
    "tanh": "std::tanh", "erf": "std::erf", "sin": "std::sin", "cos": "std::cos", "tan": "std::tan",
    "atan": "std::atan", "sinh": "std::sinh", "cosh": "std::cosh",
}  # fmt: skip
_LIBM_BINARY = {"pow": "std::pow", "atan2": "std::atan2", "fmod": "std::fmod"}
POLYNOMIAL = frozenset({"exp", "expm1", "sigmoid", "tanh", "erf", "log", "log1p"})
"""Functions that have a vector version of ours; the rest calls the C library lane by lane."""


def _scalar(op: str) -> Helper:
    """The float version, from the C library."""
    if op in _LIBM:
        return Helper(f"inline float {op}_of(float x) {{ return {_LIBM[op]}(x); }}\n")
    if op in _LIBM_BINARY:
        return Helper(f"inline float {op}_of(float a, float b) {{ return {_LIBM_BINARY[op]}(a, b); }}\n")
    return Helper(
        {
            "sigmoid": "inline float sigmoid_of(float x) { return 1.0f / (1.0f + std::exp(-x)); }\n",
            "sign": "inline float sign_of(float x) { return x > 0.0f ? 1.0f : x < 0.0f ? -1.0f : x; }\n",
            # NaN wins, as in PyTorch.
            "max": "inline float max_of(float a, float b) { return b > a || b != b ? b : a; }\n",
            "min": "inline float min_of(float a, float b) { return b < a || b != b ? b : a; }\n",
        }[op]
    )


def _vector(op: str, polynomials: bool) -> Helper:
    """The overload for ``vec``, beside the float version."""
    if op in ("max", "min"):
        sign = ">" if op == "max" else "<"
        return Helper(
            f"[[gnu::always_inline]] inline vec {op}_of(vec a, vec b) {{ return (b {sign} a) | (b != b) ? b : a; }}\n"
            f"[[gnu::always_inline]] inline vec {op}_of(vec a, float b) {{ return {op}_of(a, splat(b)); }}\n"
            f"[[gnu::always_inline]] inline vec {op}_of(float a, vec b) {{ return {op}_of(splat(a), b); }}\n"
        )
    if op == "sign":
        return Helper(
            "[[gnu::always_inline]] inline vec sign_of(vec x) {\n"
            "  const vec negative = x < 0.0f ? splat(-1.0f) : x;\n"
            "  return x > 0.0f ? splat(1.0f) : negative;\n}\n"
        )
    if op == "select":
        return Helper(
            "[[gnu::always_inline]] inline vec wide(float value) { return splat(value); }\n"
            "[[gnu::always_inline]] inline vec wide(vec value) { return value; }\n"
            "[[gnu::always_inline]] inline float select_of(bool c, float a, float b) { return c ? a : b; }\n"
            "template <class A, class B>\n"
            "[[gnu::always_inline]] inline vec select_of(ivec c, A a, B b) { return c ? wide(a) : wide(b); }\n"
            "[[gnu::always_inline]] inline vec select_of(bool c, vec a, float b) { return c ? a : splat(b); }\n"
            "[[gnu::always_inline]] inline vec select_of(bool c, float a, vec b) { return c ? splat(a) : b; }\n"
            "[[gnu::always_inline]] inline vec select_of(bool c, vec a, vec b) { return c ? a : b; }\n"
        )
    if op in _BODIES and (polynomials or op == "abs"):
        body, needs = _BODIES[op]
        return Helper(body, needs)
    if op in _LIBM_BINARY:
        return Helper(
            "template <class A, class B>\n"
            f"inline vec {op}_of(A a, B b) {{\n"
            "  const vec va = a - vec{}, vb = b - vec{};\n"
            "  vec result = va;\n"
            f"  for (int lane = 0; lane < kLanes; ++lane) result[lane] = {_LIBM_BINARY[op]}(va[lane], vb[lane]);\n"
            "  return result;\n}\n"
        )
    return Helper(
        f"inline vec {op}_of(vec x) {{\n"
        f"  for (int lane = 0; lane < kLanes; ++lane) x[lane] = {op}_of(x[lane]);\n"
        "  return x;\n}\n"
    )


NEED_HELPER = frozenset(_LIBM) | frozenset(_LIBM_BINARY) | {"sigmoid", "sign", "max", "min"}
"""Operations written as a call of ``<op>_of``; ``select`` is one in vector kernels only."""
NEED_NO_ERRNO = frozenset({"sqrt", "rsqrt", "floor", "ceil", "round", "trunc"})
"""Operations that become one instruction once errno and traps need not be kept."""


def scalar_helpers(ops: Iterable[str]) -> str:
    """Float helpers for ``ops``."""
    wanted = sorted({"sqrt" if op == "rsqrt" else op for op in ops} & NEED_HELPER)
    return "".join(_scalar(op).text for op in wanted)


def vector_helpers(ops: Iterable[str], *, polynomials: bool, degree: int) -> str:
    """Overloads for ``float`` and ``vec`` of ``ops``. ``polynomials``: our functions instead of the C library's."""
    wanted = {"sqrt" if op == "rsqrt" else op for op in ops}
    texts: dict[str, str] = {}

    def add(name: str) -> None:
        if name in texts:
            return
        if name == "exp_parts":
            texts[name] = _exp(degree)
            return
        helper = _vector(name, polynomials)
        for need in helper.needs:
            add(need)
        own = polynomials and name in POLYNOMIAL
        if own:
            # One lane of the vector version: a tail agrees with the rest of its row.
            scalar = f"inline float {name}_of(float x) {{ return {name}_of(splat(x))[0]; }}\n"
            texts[name] = helper.text + scalar
        else:
            texts[name] = ("" if name == "select" else _scalar(name).text) + helper.text

    for op in sorted(wanted & (NEED_HELPER | {"select"})):
        add(op)
    return "\n".join(texts.values())
