"""Parse language models' replies defensively: ideas from JSON, and a kernel from one fenced block.

A reply may contain anything: prose, HTML, megabytes of text, or half a kernel. The parser either extracts the answer or
raises :class:`Unusable` with the reason. The parser does not raise any other exception. Parsing takes time linear in
the length of the reply.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from msgspec import Struct

from engine.problem.spec import LANGUAGE_KEYS, LANGUAGE_TITLES, MODULES, Language
from engine.proposers.categories import CATEGORY_NAMES
from engine.proposers.llm.model_protocol import Reply
from engine.session.records.model_calls import Purpose

MAX_REPLY_CHARS = 400_000
MAX_KERNEL_CHARS = 200_000
MAX_IDEA_CHARS = 6_000
_MAX_VARIANTS = 8
_MAX_VARIANT_CHARS = 600
_MAX_IDEAS = 64
_MAX_METHOD_CHARS = 120
_MAX_TRIES = 400
"""Maximum number of positions at which the parser tries to decode a JSON value."""

_TRAILING_COMMA = re.compile(r",(\s*[}\]])")
_BACKSLASH = re.compile(r'(\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))|\\')
"""A valid escape in JSON (group 1), or a backslash that does not begin a valid escape."""
_FENCE = re.compile(r"^ {0,3}(`{3,}|~{3,})[ \t]*([^`\n]*)$")
_HTML = re.compile(r"\s*(<!doctype\s+html|<html\b|<head\b|<body\b)", re.IGNORECASE)
_DEFINES_LAUNCH = re.compile(r"\blaunch\s*\(")
_LAUNCH_BODY = re.compile(r"\blaunch\s*\([^;{}()]*\)\s*(?:noexcept\s*)?\{")
_COMMENT = re.compile(r"//[^\n]*|/\*.*?(?:\*/|\Z)", re.DOTALL)
_DEFINES_MODEL = re.compile(r"\bclass\s+ModelNew\b")
_DEFINES_TRITON = re.compile(r"@(?:triton\.)?jit\b")
_BARE_CODE = re.compile(
    r'\s*(#\s*(include|pragma|define|if)|//|/\*|extern\s+"C"|(template|namespace|__global__)\b|'
    r"using\s+(namespace\b|\w+\s*=|[\w:]+;)|(static|constexpr)\s+[\w:<>*&\s]+[\[({=;])"
)
_BARE_PYTHON = re.compile(r'\s*(import\s|from\s|#|"""|@)')
_C_WORDS = frozenset(("c", "cc", "cpp", "c++", "cxx", "cu", "cuda", "cuh", "cuda-c", "cudac", "hpp", "h", "hip"))
_PYTHON_WORDS = frozenset(("python", "py", "python3", "triton"))
_CATEGORY_WORDS = {
    "memory": "memory",
    "latency": "latency",
    "asynch": "latency",
    "precision": "precision",
    "data type": "precision",
    "compute": "compute",
    "instruction": "compute",
    "parallel": "parallelism",
    "occupancy": "parallelism",
    "control": "control",
    "loop": "control",
    "first": "first",
}


class Unusable(Exception):
    """A reply contains no usable answer. The exception's message says why in one sentence."""


class ReadIdea(Struct, frozen=True):
    """An idea as parsed from a reply. ``bottleneck``, ``method`` and ``variants`` may be empty. A variant is a way to
    write the idea's kernel. ``language`` is None if the reply does not name a known language.
    """

    category: str
    text: str
    bottleneck: str
    variants: tuple[str, ...] = ()
    language: Language | None = None
    method: str = ""


class _Block(Struct, frozen=True):
    """A fenced block: the word after the opening fence, the block's text, and whether it has a closing fence."""

    word: str
    text: str
    closed: bool


def read_ideas(reply: Reply, count: int) -> list[ReadIdea]:
    """Extract up to ``count`` ideas from a reply, in order. Raises :class:`Unusable`."""
    text = _checked(reply)
    found = list(_ideas_in(text))
    if len(found) < count:  # Of two equally long lists, max returns the first, so valid replies keep their text.
        found = max(found, list(_ideas_in(_repaired(text))), key=len)
    if found:
        return found[:count]
    if reply.finish == "length":
        raise Unusable("the reply was cut off at the output limit before its first idea was complete")
    if "{" not in text and "[" not in text:
        raise Unusable(f"the reply contains no JSON; it begins: {_beginning(text)}")
    raise Unusable(f"the reply's JSON contains no idea (an object with `text`); it begins: {_beginning(text)}")


def read_kernel(reply: Reply, language: Language) -> str:
    """Extract the source of the only kernel in a reply. Raises :class:`Unusable`."""
    text = _checked(reply)
    blocks = [block for block in _blocks(text) if block.text.strip()]
    if not blocks:
        bare = _bare(text, language)
        if bare is None:
            raise Unusable(f"the reply has no fenced code block; it begins: {_beginning(text)}")
        blocks = [_Block("", bare, reply.finish != "length")]
    module = language in MODULES
    wanted = _PYTHON_WORDS if module else _C_WORDS
    fitting = [block for block in blocks if not block.word or block.word in wanted]
    foreign = [block for block in blocks if block.word in (_C_WORDS if module else _PYTHON_WORDS)]
    if not fitting and foreign:
        raise Unusable(f"the code block is {foreign[0].word}, but the kernel must be {LANGUAGE_TITLES[language]}")
    defines = _DEFINES_MODEL if module else _DEFINES_LAUNCH
    kernels = [block for block in (fitting or blocks) if defines.search(block.text)]
    different = {block.text.strip() for block in kernels}
    if len(different) > 1 and not module:  # Other blocks may only declare, call or mention launch.
        kernels = [block for block in kernels if _LAUNCH_BODY.search(_COMMENT.sub(" ", block.text))] or kernels
        different = {block.text.strip() for block in kernels}
    if len(different) > 1:
        raise Unusable(f"the reply has {len(different)} different kernels instead of exactly one")
    what = "class ModelNew" if module else "launch"
    if not kernels:
        cut = " (the reply was cut off at the output limit)" if reply.finish == "length" else ""
        raise Unusable(f"no code block in the reply defines {what}{cut}")
    kernel = kernels[0]
    if not kernel.closed:
        why = "at the output limit" if reply.finish == "length" else "before the end of its block"
        raise Unusable(f"the kernel is cut off {why}")
    if language == "triton" and not _DEFINES_TRITON.search(kernel.text):
        raise Unusable("the code defines no Triton kernel (@triton.jit)")
    if len(kernel.text) > MAX_KERNEL_CHARS:
        raise Unusable(f"the kernel has {len(kernel.text):,} characters; the limit is {MAX_KERNEL_CHARS:,}")
    return kernel.text.strip("\n") + "\n"


def why_unusable(text: str, purpose: Purpose, language: Language) -> str | None:
    """Return a one-sentence reason why a person's reply to a ``purpose`` prompt is unusable; None if the reply is
    usable.
    """
    reply = Reply(text, "", None)
    try:
        if purpose == "ideas":
            read_ideas(reply, 1)
        else:
            read_kernel(reply, language)
    except Unusable as error:
        return str(error)
    return None


def clean(text: str) -> str:
    """Make ``text`` safe to store and compile: replace lone surrogates, drop NUL characters, and normalize newlines."""
    text = text.encode("utf-8", "replace").decode("utf-8")
    return text.replace("\r\n", "\n").replace("\r", "\n").replace("\x00", "")


def _checked(reply: Reply) -> str:
    """Clean the reply's text and drop inline reasoning. Raises :class:`Unusable` if the reply clearly has no answer."""
    if reply.finish == "refusal":
        said = f": {_beginning(reply.text)}" if reply.text.strip() else ""
        raise Unusable(f"the model refused to answer{said}")
    text = clean(reply.text)
    # Some servers leave a model's reasoning in the reply. The reply has no opening <think> if the prompt contains it.
    answer = text.rpartition("</think>")[2]
    text = answer if answer.strip() else text
    if reply.finish == "length" and text.lstrip().startswith("<think>"):
        raise Unusable("the reply was cut off at the output limit before the model had finished its reasoning")
    if len(text) > MAX_REPLY_CHARS:
        raise Unusable(f"the reply has {len(text):,} characters; the limit is {MAX_REPLY_CHARS:,}")
    if not text.strip():
        cut = ": the model reached the output limit before the first word" if reply.finish == "length" else ""
        raise Unusable(f"the reply is empty{cut}")
    if _HTML.match(text):
        raise Unusable(f"the reply is an HTML page: {_beginning(re.sub(r'<[^<>]{0,500}>', ' ', text[:4000]))}")
    return text


def _beginning(text: str) -> str:
    line = " ".join(text[:1000].split())
    return f'"{line[:120]}{"..." if len(line) > 120 else ""}"'


# Ideas


def _ideas_in(text: str) -> Iterator[ReadIdea]:
    """Yield ideas from the JSON values in the reply. Prose may surround the JSON, and the JSON may be truncated."""
    seen: set[str] = set()
    for value in _values(text):
        for idea in _ideas_of(value):
            if idea.text not in seen and len(seen) < _MAX_IDEAS:
                seen.add(idea.text)
                yield idea


def _repaired(text: str) -> str:
    """Remove trailing commas, and double the backslashes that JSON does not allow."""
    return _BACKSLASH.sub(lambda match: match[1] or r"\\", _TRAILING_COMMA.sub(r"\1", text))


def _values(text: str) -> Iterator[Any]:
    """Yield the outermost JSON objects and lists in ``text``, in order."""
    decoder, place = json.JSONDecoder(strict=False), 0  # Strings may contain line breaks.
    for _ in range(_MAX_TRIES):
        starts = [at for at in (text.find("{", place), text.find("[", place)) if at >= 0]
        if not starts:
            return
        place = min(starts)
        try:
            value, place = decoder.raw_decode(text, place)
        except (ValueError, RecursionError):
            place += 1
            continue
        yield value


def _ideas_of(value: Any) -> Iterator[ReadIdea]:
    """Yield the ideas in a decoded value: ``{"ideas": [...]}``, a list, or a single idea."""
    if isinstance(value, dict) and isinstance(value.get("ideas"), list):
        value = value["ideas"]
    for one in value[:_MAX_IDEAS] if isinstance(value, list) else [value]:
        if isinstance(one, dict) and isinstance(one.get("text"), str) and (text := _line(one["text"])):
            category = one.get("category")
            bottleneck = one.get("bottleneck")
            yield ReadIdea(
                _category(category if isinstance(category, str) else ""),
                text[:MAX_IDEA_CHARS],
                _line(bottleneck)[:400] if isinstance(bottleneck, str) else "",
                _variants(one.get("variants")),
                _language(one.get("language")),
                _line(method)[:_MAX_METHOD_CHARS] if isinstance(method := one.get("method"), str) else "",
            )


def _variants(found: object) -> tuple[str, ...]:
    """Return the texts in an idea's ``variants``, or () if ``variants`` is not a list."""
    if not isinstance(found, list):
        return ()
    texts = (_line(one)[:_MAX_VARIANT_CHARS] for one in found[:_MAX_VARIANTS] if isinstance(one, str))
    return tuple(text for text in texts if text)


def _language(found: object) -> Language | None:
    return LANGUAGE_KEYS.get(found.strip().lower()) if isinstance(found, str) else None


def _line(text: str) -> str:
    return " ".join(clean(text).split())


def _category(name: str) -> str:
    """Map a category's name to a key of ``CATEGORY_NAMES``. The name may be the key itself or contain a known word. Any
    other name maps to "other".
    """
    low = name.strip().lower()
    if low in CATEGORY_NAMES:
        return low
    return next((category for word, category in _CATEGORY_WORDS.items() if word in low), "other")


# Kernels


def _blocks(text: str) -> list[_Block]:
    """Find a text's fenced blocks, as CommonMark defines them. An unclosed block extends to the first line that ends
    with its fence, or else to the end of the text.
    """
    found: list[_Block] = []
    fence, word = "", ""
    lines: list[str] = []
    for line in text.split("\n"):
        match = _FENCE.match(line)
        if not fence:
            if match:
                fence, word, lines = match[1], (match[2].split() or [""])[0].strip("{}.").lower(), []
        elif match and match[1][0] == fence[0] and len(match[1]) >= len(fence) and not match[2].strip():
            found.append(_Block(word, "\n".join(lines), True))
            fence = ""
        else:
            lines.append(line)
    if fence:  # The closing fence may be at the end of a line of code. In a comment, it would be part of the text.
        ends = (at for at, line in enumerate(lines) if line.rstrip().endswith(fence))
        end = next((at for at in ends if "//" not in lines[at] and "#" not in lines[at]), None)
        if end is not None:
            lines = [*lines[:end], lines[end].rstrip().removesuffix(fence)]
        found.append(_Block(word, "\n".join(lines), end is not None))
    return found


def _bare(text: str, language: Language) -> str | None:
    """Return the reply's text if it is a kernel without a fence, for example a kernel file that a person saved."""
    begins, defines = (_BARE_PYTHON, _DEFINES_MODEL) if language in MODULES else (_BARE_CODE, _DEFINES_LAUNCH)
    return text if begins.match(text) and defines.search(text) else None
