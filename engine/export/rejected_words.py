"""Remove from C source the words that KernelBench's static checker rejects. All functions are pure.

The checker treats the whole solution as Python text. It truncates each line at ``#`` or ``//`` and searches the rest.
It therefore also searches C source in string literals, including block comments.
"""

from __future__ import annotations

import re

from engine.export import ExportError

REFUSED = (r"\btry\s*:", r"\bexcept\s*:", r"\bexcept\s+\w+", r"\bpass\b")
"""The patterns ``TRY_EXCEPT_PATTERNS`` and ``PASS_PATTERN`` of KernelBench's ``kernel_static_checker.py``."""
_REFUSED = re.compile("|".join(REFUSED))
_C_TOKENS = re.compile(
    r"""(?P<comment>//[^\n]*|/\*.*?\*/)
    |(?P<raw>R"(?P<mark>[^(\s]*)\(.*?\)(?P=mark)")
    |(?P<string>"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')
    |(?P<word>[A-Za-z_]\w*)""",
    re.DOTALL | re.VERBOSE,
)


def without_refused_words(text: str, comment: str = "") -> str:
    """Return C source without the rejected words.

    The function removes comments that contain a rejected word, and renames the identifier ``pass`` to ``pass_``.
    ``comment``: prefix of each line, if the text consists only of comments. :func:`check_words` finds words that
    remain.
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
    """Raise ``ExportError`` if the checker would reject a word in ``text``."""
    searched = "\n".join(line.split("#")[0].split("//")[0] for line in text.split("\n"))
    if found := _REFUSED.search(searched):
        number = searched.count("\n", 0, found.start())
        raise ExportError(
            f"line {number + 1} of the solution contains {found[0]!r}, which KernelBench's static checker "
            f"rejects: {text.splitlines()[number].strip()[:80]}; rephrase this line of the kernel"
        )
