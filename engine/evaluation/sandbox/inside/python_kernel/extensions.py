"""Split ``load_inline`` and ``load`` of ``torch.utils.cpp_extension``: the builder compiles; the runner only loads.

A runner may not start a compiler, and no compiler may run on cores or devices used for timing. Therefore a ``.py``
kernel's module runs twice. In a builder process, these functions compile into a directory; in the runner, they load
from that directory. Threat: escape. Imports torch.
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
"""Environment variable with the directory of built extensions, which :mod:`kernel_tui` also reads."""
BUILDING_VARIABLE = "KERNEL_TUI_BUILDING"
"""Environment variable that marks processes that may run compilers."""
_WITHOUT_MEANING = ("build_directory", "verbose", "keep_intermediates", "use_pch")
_LOG = "failed.log"


class NotBuilt(ImportError):
    """An extension that the module requests in the runner but did not request in the builder."""


def install() -> None:
    """Replace ``load_inline`` and ``load`` for all later imports.

    The replacements read the build directory from the environment at each call.
    """
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
    """Return a key that is the same for identical requests. For ``load``, the key covers the content of the source
    files.
    """
    meant = {name: value for name, value in arguments.items() if name not in _WITHOUT_MEANING}
    if function == "load":
        files = [meant["sources"]] if isinstance(meant["sources"], str) else meant["sources"]
        meant["sources"] = [Path(file).read_text(errors="replace") for file in files]
    text = json.dumps([function, meant], sort_keys=True, default=str)
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:24]


def _build(original: Callable[..., Any], given: dict[str, Any], home: Path) -> Any:
    home.mkdir(parents=True, exist_ok=True)
    given |= {"build_directory": str(home), "verbose": False}
    # PyTorch inserts its headers into the lists that it receives.
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
            f"kernel-tui did not build {given.get('name', 'an extension')!r} in advance: call load_inline at "
            "import or in __init__, before anything that needs a GPU"
        )
    python = bool(given.get("is_python_module", True))
    return cpp_extension._import_module_from_library(libraries[0].stem, str(home), python)


def failures(directory: Path) -> list[str]:
    """Return the compilers' output for every failed extension."""
    return [log.read_text(errors="replace") for log in sorted(directory.glob(f"*/{_LOG}"))]
