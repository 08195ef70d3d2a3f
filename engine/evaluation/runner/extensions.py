"""``load_inline`` and ``load`` of ``torch.utils.cpp_extension`` in two acts: a builder compiles, a runner only loads.

A runner may not start a compiler, and nothing is compiled on cores or a device that are timing. So the module of a
``.py`` kernel is executed twice: in a builder process, where these functions compile into a directory, and in the
runner, where they find there what they ask for. Imports torch.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import os
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

DIRECTORY_VARIABLE = "KERNEL_TUI_EXTENSIONS"
"""The directory of what is built, for :mod:`kernel_tui` too."""
BUILDING_VARIABLE = "KERNEL_TUI_BUILDING"
"""Set where compilers may run."""
_WITHOUT_MEANING = ("build_directory", "verbose", "keep_intermediates", "use_pch")
_LOG = "failed.log"


class NotBuilt(ImportError):
    """The module asks the runner for something that it did not ask the builder for."""


def install() -> None:
    """Replace the two functions for every later import; where they build is read from the environment at the call."""
    from torch.utils import cpp_extension

    for name in ("load_inline", "load"):
        original = getattr(cpp_extension, name)
        if not hasattr(original, "__kernel_tui__"):
            setattr(cpp_extension, name, _in_two_acts(original))


def _in_two_acts(original: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(original)

    def replaced(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        given = dict(bound.arguments)
        if DIRECTORY_VARIABLE not in os.environ:
            return original(**given)
        home = Path(os.environ[DIRECTORY_VARIABLE]) / key(original.__name__, given)
        if BUILDING_VARIABLE in os.environ:
            return _build(original, given, home)
        return _load(given, home)

    replaced.__kernel_tui__ = True  # type: ignore[attr-defined]
    return replaced


def key(function: str, arguments: dict[str, Any]) -> str:
    """The same for the same request; files that ``load`` names count by their content."""
    meant = {name: value for name, value in arguments.items() if name not in _WITHOUT_MEANING}
    if function == "load":
        files = [meant["sources"]] if isinstance(meant["sources"], str) else meant["sources"]
        meant["sources"] = [Path(file).read_text(errors="replace") for file in files]
    text = json.dumps([function, meant], sort_keys=True, default=str)
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:24]


def _build(original: Callable[..., Any], given: dict[str, Any], home: Path) -> Any:
    home.mkdir(parents=True, exist_ok=True)
    headers = os.environ.get("KERNEL_TUI_PCH")
    if headers and not given.get("cuda_sources"):
        # Found before torch's own directory, so that the compiler takes the precompiled one.
        given["extra_include_paths"] = [headers, *_listed(given.get("extra_include_paths"))]
    given |= {"build_directory": str(home), "verbose": False}
    # torch inserts its headers into the very lists that it is given.
    given |= {name: list(value) for name, value in given.items() if isinstance(value, list)}
    try:
        return original(**given)
    except Exception as error:
        (home / _LOG).write_text(str(error) or traceback.format_exc())
        raise


def _load(given: dict[str, Any], home: Path) -> Any:
    from torch.utils import cpp_extension

    libraries = sorted(home.glob("*.so"))
    if not libraries:
        raise NotBuilt(
            f"{given.get('name', 'an extension')!r} was not built beforehand: call load_inline when the module is "
            "imported or in __init__, without needing a GPU before it"
        )
    python = bool(given.get("is_python_module", True))
    return cpp_extension._import_module_from_library(libraries[0].stem, str(home), python)


def _listed(value: Any) -> list[Any]:
    return [] if value is None else [value] if isinstance(value, str) else list(value)


def failures(directory: Path) -> list[str]:
    """What compilers said of everything that could not be built."""
    return [log.read_text(errors="replace") for log in sorted(directory.glob(f"*/{_LOG}"))]
