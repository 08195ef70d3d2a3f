"""Schema of ``config.toml``: parse it, validate it, and write it back as TOML.

The loader reports every error in a file, each as ``config.toml:LINE: key: what is wrong; what to do``. Relative paths
resolve against the file's directory. API keys come from the environment, never from the file.
"""

from __future__ import annotations

import difflib
import json
import math
import re
import shlex
import tomllib
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal, get_args
from urllib.parse import urlsplit

import tomli_w
from msgspec import Struct
from pydantic import Field, PrivateAttr, ValidationError, ValidationInfo, field_validator
from pydantic_core import ErrorDetails

from engine.config.cluster_table import ClusterConfig
from engine.config.evaluation_table import EvaluationConfig
from engine.config.model_tables import (
    MODEL_TABLES,
    AnthropicModel,
    CalledModel,
    CommandModel,
    GeminiModel,
    ManualModel,
    ModelConfig,
    OpenAIModel,
    PlaybookModel,
    RemoteModel,
    ReplayModel,
    SpendLimits,
)
from engine.config.renamed_keys import lines_of, with_new_names
from engine.config.source_locations import KeyPath, dotted, line_of
from engine.config.toml_table import toml_table
from engine.config.values import (
    BUILTIN,
    Positive,
    ProblemReference,
    ResolvedPath,
    SessionName,
    Table,
    refusal,
)
from engine.system.text_file import UnreadableFile, read_text

__all__ = [
    "PRESETS",
    "AnthropicModel",
    "BudgetConfig",
    "CalledModel",
    "ClusterConfig",
    "CommandModel",
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
    "ProfileConfig",
    "PromptsConfig",
    "RemoteModel",
    "ReplayModel",
    "SearchConfig",
    "SpendLimits",
    "TrackingConfig",
    "load_config",
    "load_evaluation",
    "load_text",
    "parse_config",
    "preset_text",
]

Preset = Literal["quickstart", "headline", "published"]
PRESETS: tuple[Preset, ...] = get_args(Preset)

_SECRET_KEY = re.compile(r"(?i)api_?-?key|secret|password|bearer|^key$|^(auth_?|access_?)?token$")
_KEY_VARIABLE = {
    "openai": "OPENAI_API_KEY",
    "gemini": "GEMINI_API_KEY",
    "anthropic": "ANTHROPIC_API_KEY",
    "command": "that the program reads and name it in key_env",
}


class Fault(Struct, frozen=True):
    """An error in a config.

    ``line`` is numbered from 1. It is None if the error has no line, such as for a missing file.
    """

    line: int | None
    key: str
    message: str


class ConfigError(Exception):
    """The config is invalid. The message lists every error in the file, one per line."""

    def __init__(self, path: Path, faults: tuple[Fault, ...]) -> None:
        self.path = path
        self.faults = faults
        super().__init__("\n".join(self.lines))

    @property
    def lines(self) -> list[str]:
        """The errors in file order, as ``config.toml:LINE: key: what is wrong; what to do``."""
        return [
            f"{self.path}"
            + (f":{fault.line}" if fault.line is not None else "")
            + (f": {fault.key}" if fault.key else "")
            + f": {fault.message}"
            for fault in self.faults
        ]


class SearchConfig(Table):
    """The size and the strategy of the search. The counts apply to each problem separately."""

    strategy: Literal["beam", "greedy", "serial", "random"] = "beam"
    """Strategy that selects the parents of the next round."""
    rounds: int = Field(default=4, ge=1, le=1000)
    """Number of rounds per problem after round 0. In round 0, proposers write the first kernels from the reference
    alone.
    """
    ideas: int = Field(default=3, ge=1, le=100)
    """Number of ideas per problem and round."""
    variants: int = Field(default=3, ge=1, le=100)
    """Number of kernels per idea."""
    parents: int = Field(default=2, ge=1, le=100)
    """Number of kernels that become parents of the next round. ``beam`` may add one kernel whose idea's
    category is new to the lineages of these kernels.
    """
    runoff: int = Field(default=4, ge=0, le=64)
    """Number of leading kernels that the judge times side by side at the end of a round. 0 or 1 disables this runoff.
    """
    fixes: int = Field(default=2, ge=0, le=10)
    """Maximum number of attempts to repair a failed kernel."""
    languages: Annotated[tuple[Literal["cuda", "triton", "cpp", "python"], ...], Field(strict=False)] = ()
    """Languages in which models write kernels. Default: ``cuda`` on a GPU and ``cpp`` on a CPU. With several languages,
    each idea names its language. ``triton`` needs a GPU and the ``triton`` package. The playbook writes only ``cuda``
    and ``cpp``.
    """
    allocation: Literal["weights", "adaptive"] = "weights"
    """How the search divides requests among models. ``weights``: in proportion to ``weight``. ``adaptive``: in
    proportion to ``weight`` times the model's speedup gain per dollar.
    """


class BudgetConfig(SpendLimits):
    """Limits that end the search early. An omitted key means no limit."""

    minutes: Positive | None = None
    """Maximum engine time in minutes for the whole session, including resumed runs. Pauses, and time when other
    processes occupy all devices, do not count toward this limit.
    """
    minutes_per_problem: Positive | None = None
    """Engine time in minutes for each problem. With this key, the engine opens, searches and evicts one problem before
    it opens the next. Unused minutes go to other problems. Without this key, all problems share the time and stay open.
    """
    per_problem: SpendLimits = SpendLimits()
    """Limits on ``dollars``, ``tokens`` and ``calls`` for each problem separately."""


class PromptsConfig(Table):
    """Prompts for language models."""

    directory: ResolvedPath | None = None
    """Directory of templates that replace the built-in templates with the same names."""


class ProfileConfig(Table):
    """Hardware counters to show to language models."""

    counters: bool = False
    """Whether to read hardware counters of each round's leading kernels with Nsight Compute (``ncu``). Prompts then
    name the measured bottleneck. ``ncu`` cannot profile kernels in the sandbox. Therefore, the profiled kernels run
    outside the sandbox, with your permissions, after the judge has found them correct.
    """


class TrackingConfig(Table):
    """Server that receives parameters, metrics and best kernels. This table requires the ``tracking`` extra."""

    mlflow: str | None = None
    """Address of an MLflow tracking server, such as ``http://localhost:5000``. Credentials come from the environment
    (``MLFLOW_TRACKING_USERNAME``, ``MLFLOW_TRACKING_PASSWORD``, ``MLFLOW_TRACKING_TOKEN``)."""
    experiment: str = Field(default="kernel-tui", min_length=1)
    """The MLflow experiment in which each session is one run."""

    @field_validator("mlflow")
    @classmethod
    def _no_password(cls, uri: str | None) -> str | None:
        if uri is not None and urlsplit(uri).password is not None:
            raise refusal(
                "the address contains a password; remove it, and export MLFLOW_TRACKING_USERNAME and "
                "MLFLOW_TRACKING_PASSWORD instead"
            )
        return uri


class Config(Table):
    """A search's configuration. Create it with :func:`load_config` or :func:`parse_config`. All paths in it are
    absolute.

    ``problems`` lists unresolved references: absolute paths, globs, directories, or ``builtin:...``. If a file sets no
    ``name``, :func:`name_without_one` chooses it.
    """

    name: SessionName
    """The session's name, which is also its directory's name: letters, digits, ``.``, ``_`` and ``-``. Default: the
    config file's name. For ``config.toml``, the default is the name of the only problem or, with several problems, of
    the file's directory.
    """
    problems: Annotated[tuple[ProblemReference, ...], Field(min_length=1, strict=False)]
    """Files, directories, globs, or built-in problems such as ``builtin:quickstart/softmax`` and
    ``builtin:headline/*``."""
    sessions: ResolvedPath = Field(default=Path("sessions"), validate_default=True)
    """Directory for saved sessions."""
    seed: int = Field(default=0, ge=0, lt=2**63)
    """Random seed. Searches with the same seed use the same playbook ideas and the same inputs."""
    warm_start: Annotated[tuple[ResolvedPath, ...], Field(strict=False)] = ()
    """Warm start: earlier sessions, as directories or globs. In round 0, a new search judges these sessions' best
    kernels for its own problems.
    """
    search: SearchConfig = SearchConfig()
    budget: BudgetConfig = BudgetConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    cluster: ClusterConfig | None = None
    """Other hosts that judge kernels. Without this table, the engine's machine judges them."""
    prompts: PromptsConfig = PromptsConfig()
    profile: ProfileConfig = ProfileConfig()
    tracking: TrackingConfig = TrackingConfig()
    models: Annotated[tuple[ModelConfig, ...], Field(min_length=1, strict=False)] = (PlaybookModel(),)

    @field_validator("cluster")
    @classmethod
    def _devices_of_workers(cls, cluster: ClusterConfig | None, info: ValidationInfo) -> ClusterConfig | None:
        evaluation = info.data.get("evaluation")
        if cluster is not None and bool(cluster.hosts) == (cluster.scheduler is not None):
            raise refusal(
                'this table needs exactly one of two keys; set either hosts = ["gpu1", ...] or '
                'scheduler = "tls://gpu1:8786"'
            )
        if cluster is not None and cluster.scheduler is not None and cluster.certificates is None:
            raise refusal(
                'the key "certificates" is missing; set it to a directory that "kernel-tui cluster certs" wrote'
            )
        if cluster is not None and evaluation is not None and not set(evaluation.devices) <= {"auto", "cpu", "cuda"}:
            raise refusal(
                'evaluation.device must be "auto", "cpu" or "cuda" if other hosts judge kernels; to choose a host\'s '
                "GPUs, start its worker with --gpus"
            )
        return cluster

    @field_validator("models")
    @classmethod
    def _own_names(cls, models: tuple[ModelConfig, ...]) -> tuple[ModelConfig, ...]:
        names = [model.label for model in models if isinstance(model, CalledModel)]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise refusal(f'two tables have the name "{twice}"; set a different name in one of the tables')
        return models

    @field_validator("models")
    @classmethod
    def _every_role(cls, models: tuple[ModelConfig, ...]) -> tuple[ModelConfig, ...]:
        if len(models) > 1 and any(isinstance(model, ReplayModel) for model in models):
            raise refusal(
                "the replay supplies every answer, so no other proposer can run beside it; remove the other tables"
            )
        prose = [model for model in models if not isinstance(model, PlaybookModel)]
        for role in ("ideas", "code"):
            for group in (models, prose):
                if group and not any(role in model.roles for model in group):
                    who = "no table" if group is models else "no table other than the playbook's"
                    raise refusal(f'{who} has the role "{role}"; add the role to a table')
        return models

    _path: Path = PrivateAttr(default=Path("config.toml"))

    @property
    def path(self) -> Path:
        """Absolute path of the file that defined this config."""
        return self._path

    def frozen_toml(self) -> str:
        """This config as TOML, with all defaults filled in and all paths absolute. Sessions store this text."""
        table = self.model_dump(mode="json", exclude_none=True)
        return f"# Frozen from {self._path.name}. The session always runs with this config.\n" + tomli_w.dumps(table)


def load_config(path: Path | str) -> Config:
    """Read a config file. Raises :class:`ConfigError` with all errors in the file."""
    path = Path(path)
    return parse_config(load_text(path), path)


def load_evaluation(path: Path | str) -> EvaluationConfig:
    """Read a config file's ``[evaluation]`` table, which is enough to judge a single kernel. The file may omit
    ``problems``.

    Raises :class:`ConfigError` with all errors in the file.
    """
    path = Path(path)
    return parse_config(load_text(path), path, needs_problems=False).evaluation


def load_text(path: Path) -> str:
    """Read a config file's text. Raises :class:`ConfigError` if the file is unreadable."""
    try:
        return read_text(path)
    except UnreadableFile as error:
        if not path.exists():
            raise _file_error(path, f"no such file{_config_like(path)}") from None
        if path.is_dir():
            raise _file_error(path, f"this is a directory; pass the file, for example {path / 'config.toml'}") from None
        raise _file_error(path, error.reason) from None


def _config_like(path: Path) -> str:
    """Suggest what the user may have meant by ``path``, a file that does not exist."""
    if path.suffix == ".py":
        return f"; to look for a problem file: kernel-tui problems {shlex.quote(str(path))}"
    beside = sorted(item.stem for item in path.parent.glob("*.toml"))
    near = difflib.get_close_matches(path.stem, beside, n=1)
    return f"; did you mean {path.with_name(near[0])}.toml?" if near else "; create a config with: kernel-tui init"


def parse_config(text: str, path: Path | str, *, needs_problems: bool = True) -> Config:
    """Validate the text of a config without reading any file.

    Args:
        text: The TOML text.
        path: The file that the text comes from. Relative paths in the text resolve against this file's directory.
        needs_problems: Whether the text must name problems.

    Raises:
        ConfigError: The text has errors. The exception lists all errors.
    """
    path = Path(path)
    text = text.replace("\r\n", "\n")
    if (hint := _NO_CONFIG.get(path.suffix)) is not None:
        raise _file_error(path, hint(path))
    try:
        table, places = with_new_names(toml_table(text))
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(path, (_syntax_fault(str(error), text),)) from None
    try:
        named = {"name": name_without_one(path.absolute(), table.get("problems")), **table}
        if not needs_problems:
            named.setdefault("problems", (BUILTIN,))
        config = Config.model_validate(named, context={"directory": path.absolute().parent})
    except ValidationError as error:
        lines = lines_of(text, places)
        found = error.errors(include_url=False)
        details = [detail for detail in found if not _echo(detail) and not _is_misspelt(detail, found, table)]
        faults = {_fault(detail, lines, table) for detail in details}
        raise ConfigError(path, tuple(sorted(faults, key=lambda fault: (fault.line or 0, fault.key)))) from None
    config._path = path.absolute()
    return config


def name_without_one(path: Path, problems: object) -> str:
    """Choose a session name for a config that sets none.

    The name is the file's name (``mine`` for ``mine.toml``). For ``config.toml``, it is the name of the only problem
    or, with several problems, the directory's name.
    """
    candidates = [path.stem] if path.stem != "config" else []
    if isinstance(problems, list) and len(problems) == 1 and isinstance(problems[0], str):
        candidates.append(re.split(r"[/:]", problems[0].rstrip("/"))[-1].removesuffix(".py"))
    names = (re.sub(r"[^\w.-]+", "-", one, flags=re.ASCII).strip("-._")[:64] for one in (*candidates, path.parent.name))
    return next(filter(None, names), "search")


def preset_text(name: Preset) -> str:
    """A preset's config with comments, ready to write to a file."""
    return resources.files("engine.config").joinpath("presets", f"{name}.toml").read_text(encoding="utf-8")


def _is_kernel(path: Path) -> str:
    command = f"kernel-tui eval {shlex.quote(str(path))} --problem P"
    return f"this file is a kernel, not a config; judge it with: {command}"


def _is_python(path: Path) -> str:
    setting = f"problems = [{json.dumps(path.name, ensure_ascii=False)}]"
    return f"this file is Python, not a config; write a config with kernel-tui init, and set {setting} in it"


_NO_CONFIG = {".py": _is_python, ".cpp": _is_kernel, ".cu": _is_kernel}
"""Map from a file's suffix to the function that returns the error for a file that is not a config."""


def _file_error(path: Path, message: str) -> ConfigError:
    return ConfigError(path, (Fault(None, "", message),))


def _syntax_fault(message: str, text: str) -> Fault:
    place = re.search(r" \(at (?:line (\d+), column (\d+)|end of document)\)$", message)
    if place is None:
        return Fault(None, "", f"invalid TOML: {message}")
    what = message[: place.start()]
    if place[1] is None:
        return Fault(text.count("\n") + 1, "", f"invalid TOML: {what} at the end of the file")
    line = text.splitlines()[int(place[1]) - 1]
    there = line[int(place[2]) - 1 :]
    if what == "Invalid value" and not there.strip() and (key := line.partition("=")[0].strip()):
        return Fault(int(place[1]), "", f"{key} has no value")
    hint = "; put text in quotes" if what == "Invalid value" and there[:1].isalpha() else ""
    return Fault(int(place[1]), "", f"invalid TOML: {what} (column {place[2]}){hint}")


def _echo(detail: ErrorDetails) -> bool:
    """Return whether an error only repeats other errors. For example, pydantic reports a list of invalid elements a
    second time, as empty.
    """
    return detail["type"] == "too_short" and bool(detail["input"])


def _is_misspelt(detail: ErrorDetails, all_: list[ErrorDetails], table: dict[str, Any]) -> bool:
    """Return whether a key is missing only because of a misspelling that another error reports."""
    path = _path_of(detail)
    return detail["type"] == "missing" and any(
        (*there[:-1], _meant(there, table)) == path
        for there in (_path_of(one) for one in all_ if one["type"] == "extra_forbidden")
    )


def _path_of(detail: ErrorDetails) -> KeyPath:
    path = tuple(part for part in detail["loc"])
    if len(path) > 2 and path[0] == "models" and path[2] in MODEL_TABLES:
        # Pydantic adds the union member's tag to the path, but the file has no such level.
        return (*path[:2], *path[3:])
    return path


def _fault(detail: ErrorDetails, lines: dict[KeyPath, int], table: dict[str, Any]) -> Fault:
    path = _path_of(detail)
    return Fault(line_of(lines, path), dotted(path), _message(detail, path, table))


def _message(detail: ErrorDetails, path: KeyPath, table: dict[str, Any]) -> str:
    kind, value, context = detail["type"], detail["input"], detail.get("ctx", {})
    if kind == "extra_forbidden":
        return _unknown_key(path, table)
    if kind == "missing":
        return "this key is missing" + ("; list the problems to search" if path == ("problems",) else "")
    if kind in ("union_tag_invalid", "union_tag_not_found"):
        *most, last = (f'"{name}"' for name in MODEL_TABLES)
        allowed = f"{', '.join(most)} or {last}"
        given = value.get("provider") if isinstance(value, dict) else None
        if not given and isinstance(value, dict) and (near := difflib.get_close_matches("provider", value, n=1)):
            return f'unknown key {near[0]}; did you mean "provider"?'
        return f"no provider is called {given!r}; use {allowed}" if given else f"provider is missing; use {allowed}"
    if kind == "literal_error":
        return f"{value!r} is not allowed; use {context['expected'].replace(chr(39), chr(34))}"
    if kind == "too_short":
        return "the list is empty; add at least one entry"
    if bound := _bound(context):
        return f"{value!r} is not allowed; use {bound}"
    if kind == "config":
        return str(context["what"])
    if (expected := _EXPECTED.get(kind)) is None:
        return f"{_shown(value)} is not allowed: {detail['msg'][:1].lower()}{detail['msg'][1:]}"
    return f"{_shown(value)} is not allowed; use {expected}"


def _bound(context: dict[str, Any]) -> str:
    words = {"ge": "{} or more", "gt": "more than {}", "le": "{} or less", "lt": "less than {}"}
    return next((text.format(f"{context[key]:g}") for key, text in words.items() if key in context), "")


def _shown(value: object) -> str:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    kinds = {str: "text", bool: "true or false", int: "a number", float: "a number", list: "a list", dict: "a table"}
    kind = kinds.get(type(value), type(value).__name__)
    return kind if isinstance(value, dict | list) else f"{value!r} ({kind})"


_EXPECTED = {
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


def _unknown_key(path: KeyPath, table: dict[str, Any]) -> str:
    key = str(path[-1])
    model, owner = _table_at(path[:-1], table)
    if _SECRET_KEY.search(key):
        variable = _KEY_VARIABLE.get(owner, "OPENAI_API_KEY, GEMINI_API_KEY or ANTHROPIC_API_KEY")
        return f"this file must not contain API keys; set the environment variable {variable} instead"
    if near := _meant(path, table):
        return f'unknown key; did you mean "{near}"?'
    if elsewhere := _home_of(key, model):
        return f"this key belongs {elsewhere}; move it there"
    return f"unknown key; use one of {', '.join(model.model_fields)}"


def _meant(path: KeyPath, table: dict[str, Any]) -> str | None:
    """The known key in the same table that is most similar to an unknown key."""
    model, _ = _table_at(path[:-1], table)
    return next(iter(difflib.get_close_matches(str(path[-1]), model.model_fields, n=1, cutoff=0.6)), None)


def _table_at(path: KeyPath, table: dict[str, Any]) -> tuple[type[Table], str]:
    """The pydantic model of the table at ``path``, and the provider if the table belongs to ``[[models]]``."""
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
    "cluster": ClusterConfig,
    "prompts": PromptsConfig,
    "profile": ProfileConfig,
    "tracking": TrackingConfig,
}


def _home_of(key: str, here: type[Table]) -> str:
    """Where ``key`` would be valid, such as "in [budget]", or "" if no table has this key."""
    if here is not Config and key in _SECTIONS:
        return f"in its own table, [{key}]"
    if here is not Config and key in Config.model_fields:
        return "at the top of the file, before any [table]"
    providers = MODEL_TABLES.values()
    if here in providers and any(key in model.model_fields for model in providers):
        return ""
    return next((f"in [{name}]" for name, model in _SECTIONS.items() if key in model.model_fields), "")
