"""The settings that the monitor remembers between sessions."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct
from platformdirs import user_config_path

THEMES = (
    "textual-dark",
    "textual-light",
    "ansi-dark",
    "ansi-light",
    "nord",
    "gruvbox",
    "tokyo-night",
    "solarized-light",
)


class Settings(Struct, kw_only=True, omit_defaults=True):
    """The monitor's settings.

    ``notify`` says how the terminal announces alerts. ``command`` and ``webhook`` also receive alerts, if set.
    If ``ascii_glyphs`` is None, the monitor uses ASCII unless the terminal can show Unicode.
    """

    theme: str = THEMES[0]
    ascii_glyphs: bool | None = None
    notify: Literal["off", "bell", "osc9"] = "bell"
    command: str = ""
    webhook: str = ""


def settings_file() -> Path:
    return user_config_path("kernel-tui") / "monitor.json"


def load_settings() -> Settings:
    """Return the saved settings, or the defaults if the file is missing or unreadable."""
    try:
        return msgspec.json.decode(settings_file().read_bytes(), type=Settings)
    except (OSError, msgspec.MsgspecError):
        return Settings()


def save_settings(settings: Settings) -> None:
    """Save ``settings``. Raises OSError."""
    file = settings_file()
    file.parent.mkdir(parents=True, exist_ok=True)
    temporary = file.with_suffix(".tmp")
    temporary.write_bytes(msgspec.json.format(msgspec.json.encode(settings), indent=2))
    temporary.replace(file)
