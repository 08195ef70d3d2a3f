"""Find a model's program, and the environment in which it runs."""

from __future__ import annotations

import os
import shutil

from engine.config.model_tables import CommandModel
from engine.exit_codes import ExitCode
from engine.proposers.llm.clients.keys import value_of


class ProgramMissing(Exception):
    """The program of a model in the config does not exist or is not executable."""

    exit_code = ExitCode.USAGE


def environment_of(model: CommandModel) -> dict[str, str]:
    """Return the program's environment: the variables that the config names and that are set."""
    names = (*model.environment, *((model.key_env,) if model.key_env is not None else ()))
    return {name: value for name in names if (value := value_of(name)) is not None}


def check_program(model: CommandModel) -> None:
    """Check that the program exists and is executable. Raises :class:`ProgramMissing`."""
    program = model.command[0]
    path = environment_of(model).get("PATH", os.defpath)
    if shutil.which(program, path=path) is not None:
        return
    if "/" in program:
        what = f"{program} is not an executable file. Correct the `command` key in the model's [[models]] table"
    else:
        where = "PATH" if "PATH" in model.environment else f"{path} (the `environment` key does not include PATH)"
        what = f"cannot find the program {program} in {where}. Install it, or set `command` to the program's path"
    raise ProgramMissing(f"{model.label}: {what}")
