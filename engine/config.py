"""What a run may say: the models of ``config.toml``, TOML in and out.

Every error of a file is reported in one go as ``config.toml:LINE: key: what is wrong, what is allowed``. Relative
paths are relative to the file. Keys of model providers never stand in it: they come from the environment.
"""

from __future__ import annotations

import difflib
import math
import re
import tomllib
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import tomli_w
from msgspec import Struct
from pydantic import Field, PrivateAttr, ValidationError, field_validator
from pydantic_core import ErrorDetails

from engine.config_models import (
    MODEL_TABLES,
    GeminiModel,
    ManualModel,
    ModelConfig,
    OpenAIModel,
    PlaybookModel,
    RemoteModel,
    ReplayModel,
    SpendLimits,
)
from engine.config_values import (
    Device,
    MemoryLimit,
    Positive,
    ProblemReference,
    ResolvedPath,
    SessionName,
    Table,
    Tolerance,
    refusal,
)
from engine.text_file import UnreadableFile, read_text
from engine.toml_lines import KeyPath, key_lines, line_of
from engine.toml_text import toml_table

__all__ = [
    "PRESETS",
    "BudgetConfig",
    "Config",
    "ConfigError",
    "EvaluationConfig",
    "Fault",
    "GeminiModel",
    "ManualModel",
    "ModelConfig",
    "OpenAIModel",
    "PlaybookModel",
    "Preset",
    "PromptsConfig",
    "RemoteModel",
    "ReplayModel",
    "SearchConfig",
    "SpendLimits",
    "load_config",
    "parse_config",
    "preset_text",
]

Preset = Literal["quickstart", "headline", "published"]
PRESETS: tuple[Preset, ...] = get_args(Preset)

_SECRET_KEY = re.compile(r"(?i)api_?-?key|secret|password|bearer|^key$|^(auth_?|access_?)?token$")
_KEY_VARIABLE = {"openai": "OPENAI_API_KEY", "gemini": "GEMINI_API_KEY"}


class Fault(Struct, frozen=True):
    """One thing wrong with a config. ``line`` counts from 1; None where no line exists (a missing file)."""

    line: int | None
    key: str
    message: str


class ConfigError(Exception):
    """A config that cannot be used, with everything that is wrong with it, one line each."""

    def __init__(self, path: Path, faults: tuple[Fault, ...]) -> None:
        self.path = path
        self.faults = faults
        super().__init__("\n".join(self.lines))

    @property
    def lines(self) -> list[str]:
        """``config.toml:LINE: key: what is wrong, what is allowed``, in the order of the file."""
        return [
            f"{self.path}"
            + (f":{fault.line}" if fault.line is not None else "")
            + (f": {fault.key}" if fault.key else "")
            + f": {fault.message}"
            for fault in self.faults
        ]


class SearchConfig(Table):
    """The shape of the search. All counts are per problem."""

    strategy: Literal["beam", "greedy", "serial", "random"] = "beam"
    rounds: int = Field(default=4, ge=1, le=1000)
    """Rounds after round 0, in which the first kernels are written from the reference alone."""
    ideas: int = Field(default=3, ge=1, le=100)
    """Ideas in a round."""
    variants: int = Field(default=3, ge=1, le=100)
    """Kernels written for an idea."""
    survivors: int = Field(default=2, ge=1, le=100)
    """Kernels carried to the next round."""
    heat: int = Field(default=4, ge=0, le=64)
    """Leaders timed side by side at the end of a round; fewer than 2: no heat."""
    fixes: int = Field(default=1, ge=0, le=10)
    """Turns in which the proposer may repair a kernel that failed."""
    allocation: Literal["weights", "adaptive"] = "weights"
    """How questions are shared out among several models: by their weights, or also by the speedup that each earned per
    dollar so far."""


class BudgetConfig(SpendLimits):
    """Where the search stops although rounds are left. What is not given is not limited."""

    minutes: Positive | None = None
    per_problem: SpendLimits = SpendLimits()
    """Limits of each problem alone."""


class PromptsConfig(Table):
    """What language models are told."""

    directory: ResolvedPath | None = None
    """Templates that are used in place of the built-in ones of the same name."""


class EvaluationConfig(Table):
    """How kernels are built, checked and timed."""

    device: Device = "auto"
    builders: int = Field(default=0, ge=0, le=1024)
    """Compilers that run at once; 0: chosen from the number of cores."""
    trials: int = Field(default=8, ge=3, le=1000)
    """Fresh inputs a kernel is checked on before it is timed."""
    tolerance: Tolerance = "published"
    precision: Literal["any", "fp32"] = "any"
    """``any``: lower precision inside the tolerance counts; ``fp32``: only kernels as exact as fp32."""
    libraries: Literal["refuse", "label"] = "refuse"
    """Kernels that leave their work to a library (cuBLAS, cuDNN, PyTorch's operators): ``refuse``: they do not count;
    ``label``: they do, and the verdict says so."""
    max_pairs: int = Field(default=200, ge=8, le=100_000)
    """Most alternating pairs of reference and kernel that a verdict may take."""
    deadline_s: Positive = 30.0
    """Seconds that a kernel may spend in one stage (load, check, time)."""
    memory_limit: MemoryLimit = "auto"
    """Bytes that a kernel's process may hold; ``auto``: what the problem needs, and some."""
    threads: int = Field(default=0, ge=0, le=4096)
    """CPU threads for reference and kernel alike; 0: all cores."""
    sandbox: Literal["auto", "require", "off"] = "auto"
    """``auto``: the strongest isolation that works here; ``require``: refuse to run without; ``off``."""
    torch_compile: bool = True
    """Also measure ``torch.compile`` of the reference."""
    other_sizes: bool = False
    """At the end, judge each problem's winner at a smaller, an odd and a larger size too."""

    @property
    def devices(self) -> tuple[str, ...]:
        """``device`` as a list of names: ``("auto",)``, ``("cpu",)``, ``("cuda:0", "cuda:1")``."""
        return (self.device,) if isinstance(self.device, str) else self.device

    def tolerance_for(self, dtype: str) -> float:
        """Absolute and relative tolerance for outputs of ``dtype`` ("float32")."""
        if isinstance(self.tolerance, float):
            return self.tolerance
        if self.tolerance == "kernelbench" and dtype in ("float32", "float64"):
            return 1e-4
        return 1e-2


class Config(Table):
    """A whole run. Made by :func:`load_config` or :func:`parse_config`; all paths in it are absolute.

    ``name``: see :func:`name_without_one` for a file that gives none. ``problems`` are references to resolve: absolute
    paths, globs or directories, or ``builtin:...``.
    """

    name: SessionName
    problems: Annotated[tuple[ProblemReference, ...], Field(min_length=1, strict=False)]
    sessions: ResolvedPath = Field(default=Path("sessions"), validate_default=True)
    seed: int = Field(default=0, ge=0, lt=2**63)
    bank: Annotated[tuple[ResolvedPath, ...], Field(strict=False)] = ()
    """Earlier sessions, as paths or globs, whose best kernels for the same problem a new search begins with."""
    search: SearchConfig = SearchConfig()
    budget: BudgetConfig = BudgetConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    prompts: PromptsConfig = PromptsConfig()
    models: Annotated[tuple[ModelConfig, ...], Field(min_length=1, strict=False)] = (PlaybookModel(),)

    @field_validator("models")
    @classmethod
    def _own_names(cls, models: tuple[ModelConfig, ...]) -> tuple[ModelConfig, ...]:
        names = [model.label for model in models if isinstance(model, RemoteModel)]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise refusal(f'two tables are called "{twice}", allowed: different names; give one of them a name')
        return models

    @field_validator("models")
    @classmethod
    def _every_role(cls, models: tuple[ModelConfig, ...]) -> tuple[ModelConfig, ...]:
        if len(models) > 1 and any(isinstance(model, ReplayModel) for model in models):
            raise refusal("has replay beside others, allowed: replay alone, since it repeats what all of them wrote")
        prose = [model for model in models if not isinstance(model, PlaybookModel)]
        for role in ("ideas", "code"):
            for group in (models, prose):
                if group and not any(role in model.roles for model in group):
                    who = "no table" if group is models else "no table but the playbook's"
                    raise refusal(f'{who} has the role "{role}", allowed: one at least')
        return models

    _path: Path = PrivateAttr(default=Path("config.toml"))

    @property
    def path(self) -> Path:
        """The file that this config was read from, absolute."""
        return self._path

    def frozen_toml(self) -> str:
        """This config with every default spelled out and every path absolute: what a session keeps."""
        table = self.model_dump(mode="json", exclude_none=True)
        return f"# Frozen from {self._path.name}; the session that keeps it always runs with this.\n" + tomli_w.dumps(
            table
        )


def load_config(path: Path | str) -> Config:
    """Read a config file. Raises :class:`ConfigError` with every fault of the file."""
    path = Path(path)
    try:
        text = read_text(path)
    except UnreadableFile as error:
        if not path.exists():
            raise _file_error(path, "no such file; make one with: kernel-tui init") from None
        if path.is_dir():
            raise _file_error(path, f"is a directory; give the file, for example {path / 'config.toml'}") from None
        raise _file_error(path, error.reason) from None
    return parse_config(text, path)


def parse_config(text: str, path: Path | str) -> Config:
    """Validate the text of a config. Relative paths are taken from ``path``'s directory; nothing is read."""
    path = Path(path)
    text = text.replace("\r\n", "\n")
    if (hint := _NO_CONFIG.get(path.suffix)) is not None:
        raise _file_error(path, hint.format(path.name))
    try:
        table = toml_table(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(path, (_syntax_fault(str(error), text),)) from None
    try:
        named = {"name": name_without_one(path.absolute(), table.get("problems")), **table}
        config = Config.model_validate(named, context={"directory": path.absolute().parent})
    except ValidationError as error:
        lines = key_lines(text)
        found = error.errors(include_url=False)
        details = [detail for detail in found if not _echo(detail) and not _is_misspelt(detail, found, table)]
        faults = {_fault(detail, lines, table) for detail in details}
        raise ConfigError(path, tuple(sorted(faults, key=lambda fault: (fault.line or 0, fault.key)))) from None
    config._path = path.absolute()
    return config


def name_without_one(path: Path, problems: object) -> str:
    """What the sessions of a config without a name are called: as its file (``mine.toml``: mine); if that is
    config.toml, as its only problem; else as its directory."""
    candidates = [path.stem] if path.stem != "config" else []
    if isinstance(problems, list) and len(problems) == 1 and isinstance(problems[0], str):
        candidates.append(re.split(r"[/:]", problems[0].rstrip("/"))[-1].removesuffix(".py"))
    names = (re.sub(r"[^\w.-]+", "-", one, flags=re.ASCII).strip("-._")[:64] for one in (*candidates, path.parent.name))
    return next(filter(None, names), "search")


def preset_text(name: Preset) -> str:
    """The commented config of a preset, ready to be written to a file."""
    return resources.files("engine").joinpath("presets", f"{name}.toml").read_text(encoding="utf-8")


_OF_KERNELS = "is a kernel, no config; judge it with: kernel-tui eval {} --problem P"
_NO_CONFIG = {
    ".py": 'is a Python file, no config; a config names it: problems = ["{}"] (kernel-tui init writes one)',
    ".cpp": _OF_KERNELS,
    ".cu": _OF_KERNELS,
}


def _file_error(path: Path, message: str) -> ConfigError:
    return ConfigError(path, (Fault(None, "", message),))


def _syntax_fault(message: str, text: str) -> Fault:
    place = re.search(r" \(at (?:line (\d+), column (\d+)|end of document)\)$", message)
    if place is None:
        return Fault(None, "", f"not TOML: {message}")
    what = message[: place.start()]
    if place[1] is None:
        return Fault(text.count("\n") + 1, "", f"not TOML: {what} at the end of the file")
    there = text.splitlines()[int(place[1]) - 1][int(place[2]) - 1 :]
    hint = "; text stands in quotes" if what == "Invalid value" and there[:1].isalpha() else ""
    return Fault(int(place[1]), "", f"not TOML: {what} (column {place[2]}){hint}")


def _echo(detail: ErrorDetails) -> bool:
    """Whether an error only repeats others: a list counts as empty once its elements are refused."""
    return detail["type"] == "too_short" and bool(detail["input"])


def _is_misspelt(detail: ErrorDetails, all_: list[ErrorDetails], table: dict[str, Any]) -> bool:
    """Whether a missing key only is so because it is misspelt, which is told of the key that stands there."""
    path = _path_of(detail)
    return detail["type"] == "missing" and any(
        (*there[:-1], _meant(there, table)) == path
        for there in (_path_of(one) for one in all_ if one["type"] == "extra_forbidden")
    )


def _path_of(detail: ErrorDetails) -> KeyPath:
    path = tuple(part for part in detail["loc"])
    if len(path) > 2 and path[0] == "models" and path[2] in MODEL_TABLES:
        return (*path[:2], *path[3:])  # pydantic names the member of the union that it chose
    return path


def _fault(detail: ErrorDetails, lines: dict[KeyPath, int], table: dict[str, Any]) -> Fault:
    path = _path_of(detail)
    return Fault(line_of(lines, path), _dotted(path), _message(detail, path, table))


def _dotted(path: KeyPath) -> str:
    text = ""
    for part in path:
        text += f"[{part + 1}]" if isinstance(part, int) else f"{'.' if text else ''}{part}"
    return text


def _message(detail: ErrorDetails, path: KeyPath, table: dict[str, Any]) -> str:
    kind, value, context = detail["type"], detail["input"], detail.get("ctx", {})
    if kind == "extra_forbidden":
        return _unknown_key(path, table)
    if kind == "missing":
        return "is missing" + (", allowed: a list of problems" if path == ("problems",) else "")
    if kind in ("union_tag_invalid", "union_tag_not_found"):
        allowed = ", ".join(f'"{name}"' for name in MODEL_TABLES)
        given = value.get("provider") if isinstance(value, dict) else None
        if not given and isinstance(value, dict) and (near := difflib.get_close_matches("provider", value, n=1)):
            return f'unknown key {near[0]}, did you mean "provider"?'
        return f"provider is {given!r}, allowed: {allowed}" if given else f"provider is missing, allowed: {allowed}"
    if kind == "literal_error":
        return f"is {value!r}, allowed: {context['expected'].replace(chr(39), chr(34))}"
    if kind == "too_short":
        return "is empty, allowed: one or more"
    if bound := _bound(context):
        return f"is {value!r}, allowed: {bound}"
    if kind == "config":
        return str(context["what"])
    return f"is {_shown(value)}, allowed: {_expected(kind, detail['msg'])}"


def _bound(context: dict[str, Any]) -> str:
    words = {"ge": "{} and more", "gt": "more than {}", "le": "{} and less", "lt": "less than {}"}
    return next((text.format(context[key]) for key, text in words.items() if key in context), "")


def _shown(value: object) -> str:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    kinds = {str: "text", bool: "true or false", int: "a number", float: "a number", list: "a list", dict: "a table"}
    kind = kinds.get(type(value), type(value).__name__)
    return kind if isinstance(value, dict | list) else f"{value!r} ({kind})"


def _expected(kind: str, message: str) -> str:
    words = {
        "int_type": "a whole number",
        "int_from_float": "a whole number",
        "float_type": "a number",
        "finite_number": "a finite number",
        "string_type": "text in quotes",
        "string_too_short": "text in quotes",
        "bool_type": "true or false",
        "tuple_type": "a list in brackets",
        "path_type": "a path in quotes",
        "is_instance_of": "a path in quotes",
        "model_type": "a table",
        "model_attributes_type": "a table",
    }
    return words.get(kind, message[:1].lower() + message[1:])


def _unknown_key(path: KeyPath, table: dict[str, Any]) -> str:
    key = str(path[-1])
    model, owner = _table_at(path[:-1], table)
    if _SECRET_KEY.search(key):
        variable = _KEY_VARIABLE.get(owner, "OPENAI_API_KEY or GEMINI_API_KEY")
        return f"keys are never read from this file: set the environment variable {variable}"
    if near := _meant(path, table):
        return f'unknown key, did you mean "{near}"?'
    if elsewhere := _home_of(key, model):
        return f"unknown key here, it belongs to {elsewhere}"
    return f"unknown key, allowed: {', '.join(model.model_fields)}"


def _meant(path: KeyPath, table: dict[str, Any]) -> str | None:
    """The key of the same table that is written most like an unknown one."""
    model, _ = _table_at(path[:-1], table)
    return next(iter(difflib.get_close_matches(str(path[-1]), model.model_fields, n=1, cutoff=0.6)), None)


def _table_at(path: KeyPath, table: dict[str, Any]) -> tuple[type[Table], str]:
    """The model of the table at ``path``, and for ``[[models]]`` its provider."""
    if not path:
        return Config, ""
    if path[0] == "models" and len(path) > 1:
        provider = str(table["models"][path[1]].get("provider", ""))
        return (MODEL_TABLES.get(provider, PlaybookModel) if len(path) == 2 else SpendLimits), provider
    if path[0] == "budget" and len(path) > 1:
        return SpendLimits, ""
    return _SECTIONS[str(path[0])], ""


_SECTIONS: dict[str, type[Table]] = {
    "search": SearchConfig,
    "budget": BudgetConfig,
    "evaluation": EvaluationConfig,
    "prompts": PromptsConfig,
}


def _home_of(key: str, here: type[Table]) -> str:
    """The table that ``key`` would be right in, or ""."""
    if here is not Config and key in _SECTIONS:
        return f"a table of its own, [{key}]"
    if here is not Config and key in Config.model_fields:
        return "the top of the file, before any [table]"
    return next((f"[{name}]" for name, model in _SECTIONS.items() if key in model.model_fields), "")
