"""Create problem ids, and C++ identifiers for the derived header."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from msgspec import Struct

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

# The header's constants have namespace scope. They could therefore collide with C library functions in headers that the
# kernel includes, such as "gamma" and "index". The list contains only names that a model may plausibly use.
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
    """Return ``name`` as a C identifier: ``ln_weight`` for ``ln.weight``, and ``float_`` for the reserved ``float``."""
    text = re.sub(r"\W", "_", name, flags=re.ASCII)
    # C++ reserves double underscores, and a leading underscore before a capital, for the implementation.
    text = re.sub(r"_{2,}", "_", text)
    if not text or not text[0].isalpha():
        text = f"t{text}" if text.startswith("_") else f"t_{text}"
    return f"{text}_" if text in RESERVED else text


class Names:
    """Assign identifiers for one header. The identifiers and the constants derived from them are all unique."""

    def __init__(self) -> None:
        self._taken: set[str] = set()

    def take(self, wanted: str, suffixes: Iterable[str] = ()) -> str:
        """Return an unused identifier based on ``wanted``, and reserve it along with each ``identifier + suffix``."""
        ends = ("", *suffixes)
        base = identifier(wanted)
        name, count = base, 2
        while any(name + end in self._taken for end in ends):
            name, count = f"{base.rstrip('_')}_v{count}", count + 1
        self._taken.update(name + end for end in ends)
        return name

    def take_tensor(self, wanted: str, rank: int) -> str:
        """Return an unused identifier for a tensor, and reserve it along with its constants ``_dim0``, ... and
        ``_numel``.
        """
        return self.take(wanted, (*(f"_dim{axis}" for axis in range(rank)), "_numel"))


def slug(text: str) -> str:
    """Return ``text`` as a problem id: lower-case letters, digits and underscores, safe as a file name."""
    return re.sub(r"[^a-z0-9]+", "_", text.lower()).strip("_") or "problem"


class ProblemFile(Struct, frozen=True):
    """A problem file and its id in the session."""

    id: str
    path: Path


def assign_ids(paths: Sequence[Path]) -> list[ProblemFile]:
    """Assign a unique id to each file: the slug of the file name, prefixed with the directory's name if two files share
    a slug.
    """
    slugs = [slug(path.stem) for path in paths]
    taken: set[str] = set()
    files = []
    for path, short in zip(paths, slugs, strict=True):
        wanted = short if slugs.count(short) == 1 else slug(f"{path.resolve().parent.name} {path.stem}")
        problem_id, number = wanted, 2
        while problem_id in taken:
            problem_id, number = f"{wanted}_{number}", number + 1
        taken.add(problem_id)
        files.append(ProblemFile(problem_id, path))
    return files
