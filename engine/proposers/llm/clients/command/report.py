"""Reports that a program may write to stderr about its call: token usage, cost, and the kind of failure.

Each report is a line with a prefix and a JSON object::

    kernel-tui-usage: {"input_tokens": 1200, "output_tokens": 800, "dollars": 0.02}
    kernel-tui-failure: {"kind": "rate_limit", "retry_after_s": 30}

If several lines have the same prefix, only the last one applies. ``docs/how-to/language-models.md`` documents the
fields.
"""

from __future__ import annotations

from typing import Annotated, Literal, TypeVar

import msgspec
from msgspec import Meta, Struct

from engine.proposers.llm.clients.wire import Count
from engine.proposers.llm.model_protocol import CallFailed
from engine.session.records.model_calls import Finish, Usage

USAGE, FAILURE = "kernel-tui-usage:", "kernel-tui-failure:"
REJECTED = frozenset({"rate_limit", "quota", "key", "unknown_model", "bad_request"})
"""Kinds of failure for which no provider bills tokens."""
_Dollars = Annotated[float, Meta(ge=0, le=1e6)]
_T = TypeVar("_T")


class UsageReport(Struct, forbid_unknown_fields=True):
    """A call's token usage and cost. ``input_tokens`` includes ``cached_tokens`` and ``cache_written_tokens``.
    ``output_tokens`` includes ``reasoning_tokens``. ``dollars`` is the call's cost, or None to compute the cost from
    the config's prices.
    """

    input_tokens: Count
    output_tokens: Count
    cached_tokens: Count = 0
    cache_written_tokens: Count = 0
    reasoning_tokens: Count = 0
    dollars: _Dollars | None = None
    model: str = ""
    finish: Finish = "stop"

    @property
    def usage(self) -> Usage:
        return Usage(
            input=self.input_tokens,
            output=self.output_tokens,
            cached=self.cached_tokens,
            reasoning=self.reasoning_tokens,
            cache_written=self.cache_written_tokens,
        )


class FailureReport(Struct, forbid_unknown_fields=True):
    """Why a call failed. ``retry_after_s``: seconds until the next attempt."""

    kind: Literal[
        "rate_limit", "quota", "key", "unknown_model", "bad_request", "server", "connection", "timeout", "broken_reply"
    ]
    retry_after_s: Annotated[float, Meta(ge=0, le=1e9)] | None = None


class Report(Struct, frozen=True):
    """A program's reports about one call. ``said`` is the rest of stderr."""

    usage: UsageReport | None
    failure: FailureReport | None
    said: str


def read_report(stderr: str) -> Report:
    """Read the reports in a program's stderr. Raises :class:`CallFailed` if a report is invalid."""
    last: dict[str, str] = {}
    rest: list[str] = []
    for line in stderr.splitlines():
        for prefix in (USAGE, FAILURE):
            if line.startswith(prefix):
                last[prefix] = line.removeprefix(prefix)
                break
        else:
            rest.append(line)
    return Report(_decode(last, USAGE, UsageReport), _decode(last, FAILURE, FailureReport), "\n".join(rest))


def _decode(lines: dict[str, str], prefix: str, kind: type[_T]) -> _T | None:
    if (text := lines.get(prefix)) is None:
        return None
    try:
        return msgspec.json.decode(text, type=kind)
    except (msgspec.DecodeError, UnicodeEncodeError) as error:  # DecodeError includes ValidationError.
        raise CallFailed("broken_reply", f"the {prefix} line on stderr is invalid: {error}") from None
