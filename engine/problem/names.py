"""Names that are safe in C++: what PyTorch calls a tensor becomes an identifier of the derived header."""

from __future__ import annotations

import re
from collections.abc import Iterable

_CPP_KEYWORDS = """
alignas alignof and and_eq asm auto bitand bitor bool break case catch char char8_t char16_t char32_t class compl
concept const consteval constexpr constinit const_cast continue co_await co_return co_yield decltype default delete
do double dynamic_cast else enum explicit export extern false float for friend goto if inline int long mutable
namespace new noexcept not not_eq nullptr operator or or_eq private protected public register reinterpret_cast
requires restrict return short signed sizeof static static_assert static_cast struct switch template this
thread_local throw true try typedef typeid typename typeof union unsigned using virtual void volatile wchar_t while
xor xor_eq
"""

_CUDA_NAMES = """
blockDim blockIdx cudaStream_t dim3 gridDim half half2 threadIdx warpSize
"""

# A constant of the header lies at namespace scope, where it would collide with a C library function that a
# kernel's own #include declares ("gamma" and "index" are such functions). Only plausible names are listed.
_LIBRARY_NAMES = """
INFINITY NAN NULL abort abs accept acos acosh alarm asin asinh assert atan atan2 atanh atof atoi bind cbrt ceil clock
connect copysign cos cosh div drem environ erf erfc errno exit exp exp10 exp2 expm1 fabs fdim floor fma fmax fmin fmod
free frexp gamma hypot index int16_t int32_t int64_t int8_t isinf isnan j0 j1 jn ldexp lgamma linux listen log log10
log1p log2 logb main malloc max memcpy memset min modf nan nearbyint norm nice pause pipe pow printf ptrdiff_t putc
puts qsort raise rand random read realloc remainder remove rename rint rindex round rsqrt scalb send select signal
signbit significand sin sincos sinh size_t sleep sqrt srand std stderr stdin stdout sync system tan tanh tgamma time
trunc uint16_t uint32_t uint64_t uint8_t unix wait write y0 y1 yn
"""

_OWN_NAMES = "launch workspace workspace_bytes stream"

RESERVED = frozenset(f"{_CPP_KEYWORDS} {_CUDA_NAMES} {_LIBRARY_NAMES} {_OWN_NAMES}".split())


def identifier(name: str) -> str:
    """``name`` as a C identifier: ``ln.weight`` becomes ``ln_weight``, a reserved word gets a trailing underscore."""
    text = re.sub(r"\W", "_", name, flags=re.ASCII)
    # Two adjacent underscores, and a leading one before a capital, belong to the C++ implementation.
    text = re.sub(r"_{2,}", "_", text)
    if not text or not text[0].isalpha():
        text = f"t{text}" if text.startswith("_") else f"t_{text}"
    return f"{text}_" if text in RESERVED else text


class Names:
    """Hands out identifiers that are unique in one header, together with their derived constants."""

    def __init__(self) -> None:
        self._taken: set[str] = set()

    def take(self, wanted: str, suffixes: Iterable[str] = ()) -> str:
        """A free identifier near ``wanted``; it and each ``identifier + suffix`` are reserved from now on."""
        ends = ("", *suffixes)
        base = identifier(wanted)
        name, count = base, 2
        while any(name + end in self._taken for end in ends):
            name, count = f"{base.rstrip('_')}_v{count}", count + 1
        self._taken.update(name + end for end in ends)
        return name

    def take_tensor(self, wanted: str, rank: int) -> str:
        """A free identifier for a tensor whose ``_dim0``... and ``_numel`` constants are free too."""
        return self.take(wanted, (*(f"_dim{axis}" for axis in range(rank)), "_numel"))


def slug(text: str) -> str:
    """``text`` as a problem id: lower case, letters, digits and underscores, safe as a file name."""
    return re.sub(r"[^a-z0-9]+", "_", text.lower()).strip("_") or "problem"
