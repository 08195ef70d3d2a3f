"""Explain in the verdict why a kernel's process ended."""

from __future__ import annotations

import os
import re
import signal
from typing import Literal

End = Literal[
    "crashed", "timeout", "memory", "forbidden", "cancelled", "launch_failed", "wrong_output", "not_loaded", "error"
]
_EXCEPTION = re.compile(r"terminate called after throwing an instance of '([^'\n]*)'(?:\s*what\(\):\s*([^\n]*))?")


def why(status: int, printed: str, bound: str, workspace_bytes: int) -> tuple[End, str]:
    """Return the kind of failure that ended a process, and a sentence that explains the failure.

    ``status``: the wait status. ``printed``: the end of the kernel's output. ``bound``: a phrase that states the
    kernel's memory limit and the remedy.
    """
    if not os.WIFSIGNALED(status):
        return "crashed", f"the kernel exited with code {os.WEXITSTATUS(status)}; return instead of exiting"
    number = os.WTERMSIG(status)
    try:
        name = signal.Signals(number).name
    except ValueError:
        name = f"signal {number}"
    if number == signal.SIGSYS:
        return "forbidden", f"the kernel tried to start a process ({name}); use threads instead"
    if "bad_alloc" in printed:
        return "memory", f"the kernel exceeded its {bound}"
    if number == signal.SIGKILL:  # The judge does not call this function after killing the process itself.
        return "error", f"the system killed the kernel ({name}), perhaps for lack of memory; judge the kernel again"
    return "crashed", f"{name} ended the kernel{_cause(number, printed, workspace_bytes)}"


def _cause(number: int, printed: str, workspace_bytes: int) -> str:
    """Return the usual cause of a signal, or "" if it is unknown."""
    match number:
        case signal.SIGABRT:
            return f": {said}" if (said := _last_words(printed)) else ""
        case signal.SIGSEGV | signal.SIGBUS:
            workspace = f"a buffer or the {workspace_bytes:,}-byte workspace" if workspace_bytes else "a buffer"
            return f": it accessed memory outside its buffers, perhaps past the end of {workspace}"
        case signal.SIGFPE:
            return ": it may have divided an integer by zero"
        case signal.SIGILL:
            return ": it ran an instruction that this processor lacks, or code that the compiler considered unreachable"
    return ""


def _last_words(printed: str) -> str:
    """Return the last output before ``abort``: an uncaught C++ exception, or the last printed line."""
    if thrown := list(_EXCEPTION.finditer(printed)):
        kind, what = thrown[-1].groups()
        return f"uncaught exception {kind}{f': {what}' if what else ''}"
    return (printed.strip().splitlines() or [""])[-1]
