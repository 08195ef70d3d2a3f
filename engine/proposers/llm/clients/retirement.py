"""Dates on which providers retire models. If a model has no entry, the provider has not announced a date.

Sources: https://platform.openai.com/docs/deprecations, https://ai.google.dev/gemini-api/docs/deprecations, and
``DEPRECATED_MODELS`` in Anthropic's SDK 2.12, which follows
https://platform.claude.com/docs/en/about-claude/model-deprecations.
"""

from __future__ import annotations

import re
from datetime import date

RETIREMENTS: dict[str, date] = {
    "o3": date(2026, 12, 11),
    "gemini-2.5-pro": date(2026, 12, 1),
    "claude-opus-4": date(2026, 6, 15),
    "claude-opus-4-0": date(2026, 6, 15),
    "claude-sonnet-4": date(2026, 6, 15),
    "claude-sonnet-4-0": date(2026, 6, 15),
    "claude-sonnet-4-5": date(2026, 11, 30),
}
_SNAPSHOT = re.compile(r"-(\d{4}-\d{2}-\d{2}|\d{3}|\d{8})$")


def retirement(model: str) -> date | None:
    """Return the first day on which ``model``, a name or a dated snapshot, is no longer available; None if unknown."""
    name = model.rpartition("/")[2].lower()
    return RETIREMENTS.get(_SNAPSHOT.sub("", name))
