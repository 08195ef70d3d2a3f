"""Dates on which providers retire models. If a model has no entry, the provider has not announced a date.

Sources: https://platform.openai.com/docs/deprecations and https://ai.google.dev/gemini-api/docs/deprecations.
"""

from __future__ import annotations

import re
from datetime import date

RETIREMENTS: dict[str, date] = {
    "o3": date(2026, 12, 11),
    "gemini-2.5-pro": date(2026, 12, 1),
}
_SNAPSHOT = re.compile(r"-(\d{4}-\d{2}-\d{2}|\d{3}|\d{8})$")


def retirement(model: str) -> date | None:
    """Return the first day on which ``model``, a name or a dated snapshot, is no longer available; None if unknown."""
    name = model.rpartition("/")[2].lower()
    return RETIREMENTS.get(_SNAPSHOT.sub("", name))
