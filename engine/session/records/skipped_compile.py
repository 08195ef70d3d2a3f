"""Log lines that say why the judge did not time ``torch.compile``. The log keeps the reason as text, so this file both
writes the lines and reads the reason back.
"""

from __future__ import annotations

import re

STOP_PLANNED = "a person stopped the search after the running rounds"
"""The reason of a planned stop, for ``stopped_work``. If the person cancels the stop, the reason no longer holds."""
_LINE = re.compile(
    r"(?P<skipped>.+): skipped torch\.compile, which (?P<why>takes .+)"
    r"|stopped timing torch\.compile on (?P<stopped>\S+), because (?P<end>.+)"
)


def skipped_compile(problem: str, expected_s: float, whose: str, left_s: float) -> str:
    """Format the log line for a skipped ``torch.compile``: the turn or the budget (``whose``) has only ``left_s``
    seconds.
    """
    has = f"the {whose} has {max(0.0, left_s):.0f} s left for it"
    return f"{problem}: skipped torch.compile, which takes about {expected_s:.0f} s; {has}"


def timing_compile(problem: str) -> str:
    """Describe the timing of ``torch.compile`` on a problem, for use in a sentence."""
    return f"timing torch.compile on {problem}"


def stopped_work(what: str, why: str) -> str:
    """Format the log line for work that the engine stopped. ``what`` names the work, for example as ``timing_compile``
    does.
    """
    return f"stopped {what}, because {why}"


def reason_in(line: str) -> tuple[str, str] | None:
    """Return the problem and the reason that a log line names. Return None if the line is about something else."""
    if (found := _LINE.fullmatch(line)) is None:
        return None
    if found["skipped"] is not None:
        return found["skipped"], f"it {found['why']}"
    return found["stopped"], found["end"]
