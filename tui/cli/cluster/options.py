"""Options and errors that the cluster commands share."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import click

from engine.exit_codes import ExitCode
from tui.cli.shared.common import Failure

F = TypeVar("F", bound=Callable[..., Any])


def certificates_option(command: F) -> F:
    """Add ``--certificates DIRECTORY``."""
    return click.option(
        "--certificates",
        type=click.Path(file_okay=False, path_type=Path),
        default=Path("certs"),
        show_default=True,
        help="Directory that 'kernel-tui cluster certs' wrote.",
    )(command)


@contextlib.contextmanager
def needs_extra() -> Iterator[None]:
    """Say how to install the ``cluster`` extra if one of its packages is missing."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name not in ("distributed", "dask", "cryptography"):
            raise
        raise Failure(
            f"the package {error.name} is missing: pip install 'kernel-tui[cluster]' (from a checkout: '.[cluster]')",
            ExitCode.NO_TOOLS,
        ) from error
