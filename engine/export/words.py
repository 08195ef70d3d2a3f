"""Words that KernelBench's static checker refuses anywhere in a solution, and how C can do without them. Pure.

The checker looks at Python text: it cuts lines at ``#`` and ``//`` and searches the rest, so C in a string literal, its
block comments included, is searched as well.
"""

from __future__ import annotations

import re

from engine.export import ExportError

REFUSED = (r"\btry\s*:", r"\bexcept\s*:", r"\bexcept\s+\w+", r"\bpass\b")
"""``TRY_EXCEPT_PATTERNS`` and ``PASS_PATTERN`` of ``kernel_static_checker.py``."""
_REFUSED = re.compile("|".join(REFUSED))
_C_TOKENS = re.compile(
    r"""(?P<comment>//[^\n]*|/\*.*?\*/)
    |(?P<raw>R"(?P<mark>[^(\s]*)\(.*?\)(?P=mark)")
    |(?P<string>"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')
    |(?P<word>[A-Za-z_]\w*)""",
    re.DOTALL | re.VERBOSE,
)


def without_refused_words(text: str, comment: str = "") -> str:
    """The same C without the words: comments that hold one go, ``pass`` as a name gets an underscore.

    ``comment``: the text is comments alone, each line begun by it. Raises nothing: what is left is found by
    :func:`check_words`.
    """
    if comment:
        return "\n".join(comment + " ..." if _REFUSED.search(line) else line for line in text.splitlines())
    name = "pass_"
    while re.search(rf"\b{name}\b", text):
        name += "_"

    def replaced(match: re.Match[str]) -> str:
        token = match[0]
        if match["comment"] is not None:
            return " " + "\n" * token.count("\n") if _REFUSED.search(token) else token
        if match["string"] is not None and token[0] == '"':
            return re.sub(r"\bpass\b", 'pa" "ss', token)
        return name if match["word"] == "pass" else token

    return _C_TOKENS.sub(replaced, text)


def check_words(text: str) -> None:
    """Raises ``ExportError`` where the checker would refuse ``text`` for one of the words."""
    searched = "\n".join(line.split("#")[0].split("//")[0] for line in text.split("\n"))
    if found := _REFUSED.search(searched):
        number = searched.count("\n", 0, found.start())
        raise ExportError(
            f"line {number + 1} of the solution would hold {found[0]!r}, which KernelBench's static checker refuses: "
            f"{text.splitlines()[number].strip()[:80]}; write it in other words"
        )
