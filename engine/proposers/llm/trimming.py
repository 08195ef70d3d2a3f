"""Trim the compiler's and the judge's output to the part that a repair needs. All functions are pure."""

from __future__ import annotations

import re

from engine.session.records.verdict import Verdict

LOG_CHARS = 3_500
_ERRORS = 6
_AFTER = 3
"""Maximum number of lines to keep after each compiler error: the source line, the caret and a hint."""

_ERROR = re.compile(r"\b(error|undefined reference|undefined symbol)\b|^no function ", re.IGNORECASE)
_NOISE = re.compile(r"^(ptxas info|In file included from|\s+from )|: warning: |\d+ errors? detected|^make")


def build_log(log: str) -> str:
    """Extract the first distinct errors from a compiler's output, each with the lines that follow it."""
    lines = [line.rstrip() for line in log.splitlines()]
    kept: list[str] = []
    seen: set[str] = set()
    taken = 0
    for place, line in enumerate(lines):
        if taken == _ERRORS:
            break
        if not _ERROR.search(line) or _NOISE.search(line):
            continue
        what = re.sub(r"^[^:\s(]*[:(][\d:,]*\)?:?", "", line).strip()
        if what in seen:
            continue
        seen.add(what)
        taken += 1
        kept.append(line[:400])
        for after in lines[place + 1 : place + 1 + _AFTER]:
            if _ERROR.search(after) or not after.strip():
                break
            kept.append(after[:200])
    text = "\n".join(kept) or "\n".join(lines[:20])
    return text if len(text) <= LOG_CHARS else text[:LOG_CHARS] + "\n[...]"


def failure(verdict: Verdict) -> str:
    """Describe a kernel's failure: the judge's message, and the evidence that helps to repair the kernel."""
    if verdict.status == "build_error":
        log = verdict.build.log if verdict.build is not None else ""
        return build_log(log) if log.strip() else verdict.reason.strip()
    said = [f"{verdict.status.replace('_', ' ')}: {verdict.reason.strip()}"]
    passed = [check.name for check in verdict.checks if check.passed]
    if passed:
        said.append(f"checks passed: {'; '.join(passed)}")
    if verdict.status == "wrong" and verdict.max_rel_error:
        said.append(f"largest error: {verdict.max_abs_error:.4g} absolute, {verdict.max_rel_error:.4g} relative")
    if tail := verdict.output_tail.strip():
        said.append(f"output: {tail[-500:]}")
    return "\n".join(said)[:LOG_CHARS]
