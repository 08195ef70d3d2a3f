"""Parse the ``extern "C"`` functions of a source file, and convert Python values to C arguments."""

from __future__ import annotations

import ctypes
import re
from dataclasses import dataclass
from typing import Any

_FUNCTION = re.compile(r'extern\s+"C"\s+([\w\s:*]+?)\s*\b(\w+)\s*\(([^)]*)\)\s*(?:noexcept\s*)?\{', re.DOTALL)
_COMMENT = re.compile(r"""("(?:\\.|[^"\\\n])*"|'\\?.')|//[^\n]*|/\*.*?\*/""", re.DOTALL)
"""Match a comment or, as group 1, a string or character literal, which may contain the start of a comment."""
_ON_GPU = {"__global__", "__device__"}
_NUMBERS: dict[str, Any] = {
    "bool": ctypes.c_bool,
    "char": ctypes.c_char,
    "signed char": ctypes.c_byte,
    "unsigned char": ctypes.c_ubyte,
    "short": ctypes.c_short,
    "short int": ctypes.c_short,
    "unsigned short": ctypes.c_ushort,
    "unsigned short int": ctypes.c_ushort,
    "int": ctypes.c_int,
    "unsigned": ctypes.c_uint,
    "unsigned int": ctypes.c_uint,
    "long": ctypes.c_long,
    "long int": ctypes.c_long,
    "unsigned long": ctypes.c_ulong,
    "unsigned long int": ctypes.c_ulong,
    "long long": ctypes.c_longlong,
    "long long int": ctypes.c_longlong,
    "unsigned long long": ctypes.c_ulonglong,
    "unsigned long long int": ctypes.c_ulonglong,
    "float": ctypes.c_float,
    "double": ctypes.c_double,
    "size_t": ctypes.c_size_t,
    "int8_t": ctypes.c_int8,
    "int16_t": ctypes.c_int16,
    "int32_t": ctypes.c_int32,
    "int64_t": ctypes.c_int64,
    "uint8_t": ctypes.c_uint8,
    "uint16_t": ctypes.c_uint16,
    "uint32_t": ctypes.c_uint32,
    "uint64_t": ctypes.c_uint64,
}
_DTYPES = {
    "float": ("float32",),
    "double": ("float64",),
    "__half": ("float16",),
    "half": ("float16",),
    "_Float16": ("float16",),
    "__nv_bfloat16": ("bfloat16",),
    "uint16_t": ("uint16", "bfloat16", "float16"),
    "int": ("int32",),
    "int32_t": ("int32",),
    "long": ("int64",),
    "long long": ("int64",),
    "int64_t": ("int64",),
    "int16_t": ("int16",),
    "int8_t": ("int8",),
    "uint8_t": ("uint8", "bool"),
    "bool": ("bool",),
}


@dataclass(frozen=True)
class Parameter:
    """A parameter of a C function. ``kind`` is the C type without ``const`` and ``*``."""

    name: str
    kind: str
    is_pointer: bool

    @property
    def is_stream(self) -> bool:
        return self.kind == "cudaStream_t"

    @property
    def ctype(self) -> Any:
        return ctypes.c_void_p if self.is_pointer or self.is_stream else _NUMBERS[self.kind]

    def convert(self, value: Any) -> Any:
        """Convert a Python value to a C argument.

        A contiguous tensor becomes its address, None becomes a null pointer, and a number stays a number. Raises
        ``TypeError`` for a tensor that is not contiguous or has the wrong dtype.
        """
        if not hasattr(value, "data_ptr"):
            return value
        if not self.is_pointer:
            raise TypeError(f"{self.name} must be {self.kind}, not a tensor")
        dtype = str(value.dtype).removeprefix("torch.")
        if self.kind in _DTYPES and dtype not in _DTYPES[self.kind]:
            raise TypeError(f"{self.name} points to {self.kind}, but the tensor's dtype is {dtype}")
        if not value.is_contiguous():
            raise TypeError(f"{self.name}: the tensor is not contiguous; call .contiguous() first")
        return value.data_ptr()


@dataclass(frozen=True)
class Function:
    """A function with C linkage. ``is_status`` is true if the function returns ``int``: by convention, 0 or an error
    code.
    """

    name: str
    returns: str
    parameters: tuple[Parameter, ...]

    @property
    def is_status(self) -> bool:
        return self.returns == "int"

    @property
    def result(self) -> Any:
        return None if self.returns == "void" else _NUMBERS[self.returns]

    @property
    def signature(self) -> str:
        return ", ".join(f"{p.kind}{'*' if p.is_pointer else ''} {p.name}" for p in self.parameters) or "nothing"


def functions_of(source: str) -> list[Function]:
    """Return the host functions that ``source`` defines as ``extern "C" TYPE NAME(...) {``.

    Raises ``ValueError`` for a C type that has no Python equivalent.
    """
    found = []
    for returns, name, text in _FUNCTION.findall(_COMMENT.sub(lambda match: match[1] or " ", source)):
        if _ON_GPU & set(returns.split()):
            continue
        words = [part for part in (" ".join(part.split()) for part in text.split(",")) if part and part != "void"]
        parameters = tuple(_parameter(name, index, word) for index, word in enumerate(words))
        kind = _plain(returns)
        if kind != "void" and kind not in _NUMBERS:
            raise ValueError(f"{name} returns {kind}, which has no Python equivalent; return int or void")
        found.append(Function(name, kind, parameters))
    return found


def _parameter(function: str, index: int, text: str) -> Parameter:
    text = text.replace("__restrict__", " ")
    if "*" in text:
        kind, _, name = text.rpartition("*")
        return Parameter(name.strip() or f"argument {index}", _plain(kind.replace("*", " ")), True)
    words = text.split()
    kind, name = _plain(" ".join(words[:-1])), words[-1]
    if kind != "cudaStream_t" and kind not in _NUMBERS:
        raise ValueError(f"{function}: parameter {name!r} has type {kind or text!r}, which has no Python equivalent")
    return Parameter(name, kind, False)


def _plain(kind: str) -> str:
    return " ".join(word.removeprefix("std::") for word in kind.split() if word not in ("const", "static", "inline"))
