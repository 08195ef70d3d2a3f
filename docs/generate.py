"""Fill the reference pages from the program: python docs/generate.py

In a page, Markdown between the lines ``<!-- generate: NAME ARGUMENTS -->`` and ``<!-- end -->`` is generated.
``GENERATORS`` maps each name to the function that returns the Markdown. The script updates the pages, and a test fails
if a page is out of date.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import json
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import click
from msgspec import Struct
from msgspec.structs import fields
from pydantic import BaseModel

# These imports are the only places where the documentation depends on the code's layout.
from engine.config.schema import Config
from engine.evaluation.judge_policy import POLICY
from engine.problem.c_header import derive_header
from engine.problem.catalog import inspect_files, resolve
from engine.problem.spec import ProblemSpec
from engine.session.records.events import AnyEvent
from tui.cli.main import cli
from tui.monitor.key_bindings import ACTIONS, REPLAY_ACTIONS

PAGES = Path(__file__).parent / "reference"
GENERATED = re.compile(r"^(<!-- generate: ([a-z-]+)(.*?) -->)\n.*?^(<!-- end -->)$", re.MULTILINE | re.DOTALL)
_HELP_COLUMNS = 90


def filled(markdown: str) -> str:
    """Return a page with up-to-date generated parts."""
    return GENERATED.sub(
        lambda match: f"{match[1]}\n\n{GENERATORS[match[2]](*match[3].split())}\n\n{match[4]}", markdown
    )


def main() -> None:
    for page in sorted(PAGES.glob("*.md")):
        before = page.read_text()
        if (after := filled(before)) != before:
            page.write_text(after)
            print(f"updated {page}")


# Command line


def commands() -> str:
    """Return a table of all commands, followed by each command's help text."""
    found = list(_commands(cli, "kernel-tui"))
    rows = [(f"[`{name}`](#{_anchor(name)})", command.get_short_help_str(200)) for name, command in found]
    parts = [_table(("command", "purpose"), rows)]
    for name, command in found:
        parts.append(f"## `{name}`\n\n```text\n{help_text(command, name)}\n```")
    return "\n\n".join(parts)


def help_text(command: click.Command, name: str) -> str:
    """Return the output of ``NAME --help`` in a terminal of ``_HELP_COLUMNS`` columns."""
    context = click.Context(command, info_name=name, terminal_width=_HELP_COLUMNS)
    return command.get_help(context).rstrip()


def exit_codes() -> str:
    """Return the table of exit codes, from the output of ``kernel-tui --help``."""
    rows = re.findall(r"(?m)^ +(\d+) +(\S.*)$", help_text(cli, "kernel-tui").partition("Exit codes")[2])
    return _table(("code", "meaning"), [(f"`{code}`", meaning) for code, meaning in rows])


def _commands(group: click.Group, prefix: str) -> Iterator[tuple[str, click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if command.hidden:
            continue
        if isinstance(command, click.Group):
            yield from _commands(command, f"{prefix} {name}")
        else:
            yield f"{prefix} {name}", command


# Config file


def config(table: str = "") -> str:
    """Return the keys of a config table, such as ``search`` or ``models.openai``, or the top-level keys for ""."""
    tables = config_tables()
    model, left_out = tables[table], set[str]()
    if table == "":
        left_out = {name for name in model.model_fields if name == "models" or name in tables}
    elif table.startswith("models."):
        left_out = {"provider"}
    return _keys(model, left_out)


def config_tables() -> dict[str, type[BaseModel]]:
    """Return all config tables by name: ``""`` for the top level, ``search``, ``models.openai`` and so on."""
    tables: dict[str, type[BaseModel]] = {"": Config}
    for name, field in Config.model_fields.items():
        if name == "models":
            for model in _models_in(field.annotation):
                (provider,) = get_args(model.model_fields["provider"].annotation)
                tables[f"models.{provider}"] = model
        elif found := _models_in(field.annotation):
            tables[name] = found[0]
    return tables


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for argument in get_args(annotation) for model in _models_in(argument)]


def _keys(model: type[BaseModel], left_out: set[str]) -> str:
    schema = model.model_json_schema()
    meanings = field_meanings(model)
    rows = []
    for name, field in sorted(model.model_fields.items(), key=lambda item: not item[1].is_required()):
        if name not in left_out:
            default = "required" if field.is_required() else _default(field.default)
            if model is Config and name == "name":
                default = "derived"  # set before pydantic validates the table
            rows.append((f"`{name}`", default, _allowed(schema["properties"][name]), meanings.get(name, "")))
    return _table(("key", "default", "allowed", "meaning"), rows)


def field_meanings(model: type) -> dict[str, str]:
    """Return the docstring of each field of a class and its base classes."""
    meanings: dict[str, str] = {}
    for base in reversed(model.__mro__):
        if base.__module__.startswith("engine."):
            (definition,) = ast.parse(textwrap.dedent(inspect.getsource(base))).body
            assert isinstance(definition, ast.ClassDef)
            for field, text in zip(definition.body, definition.body[1:], strict=False):
                if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and _is_text(text):
                    meanings[field.target.id] = _prose(ast.literal_eval(text.value))  # type: ignore[attr-defined]
    return meanings


def _is_text(statement: ast.stmt) -> bool:
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
    )


def _default(value: object) -> str:
    if value is None or isinstance(value, BaseModel) or value == ():
        return "none"
    return f"`{json.dumps(str(value) if isinstance(value, Path) else value)}`"


def _allowed(schema: dict[str, Any]) -> str:
    """Describe the values that a JSON schema allows."""
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(word for one in schema["anyOf"] if (word := _allowed(one))))
    if "enum" in schema or "const" in schema:
        return ", ".join(f"`{json.dumps(one)}`" for one in schema.get("enum", [schema.get("const")]))
    if "$ref" in schema:
        return "a table"
    if schema.get("type") == "array":
        return f"list of {_allowed(schema['items'])}"
    if schema.get("format") == "path":
        return "path"
    names = {"integer": "integer", "number": "number", "string": "text", "boolean": "`true`, `false`"}
    kind = names.get(schema.get("type", ""), "")
    limits = []
    if "exclusiveMinimum" in schema:
        limits.append(f"above {schema['exclusiveMinimum']}")
    if "minimum" in schema:
        limits.append(f"from {schema['minimum']}")
    if "maximum" in schema:
        limits.append(f"to {schema['maximum']}")
    return " ".join([kind, *limits])


# Session events


def events() -> str:
    """Return a section for each event, then for each object inside events. Fields have the names in the file."""
    known = get_args(AnyEvent)
    parts = [_struct(event, f"## `{event.__struct_config__.tag}`") for event in known]
    inside = [kind for kind in _structs_in(known) if kind not in known]
    parts += ["## Objects", *(_struct(kind, f"### `{kind.__name__}`") for kind in inside)]
    return "\n\n".join(parts)


def _struct(kind: type[Struct], heading: str) -> str:
    """Return the heading, the description and the fields of an event or an object."""
    described = _markdown(inspect.cleandoc(kind.__doc__ or "")) if "__doc__" in vars(kind) else ""
    described = re.sub(r"\bNone\b", "`null`", described)
    for field in fields(kind):
        described = described.replace(f"`{field.name}`", f"`{field.encode_name}`")
    rows = [(f"`{field.encode_name}`", _json_type(field.type)) for field in fields(kind)]
    table = _table(("field", "type"), rows) if rows else "No fields."
    return "\n\n".join(filter(None, [heading, described, table]))


def _structs_in(kinds: Iterable[Any]) -> list[type[Struct]]:
    """List the structs among ``kinds`` and in their fields, each once, in order of appearance."""
    found: dict[type[Struct], None] = {}
    left = list(reversed(list(kinds)))
    while left:
        kind = left.pop()
        inner = list(get_args(kind))
        if isinstance(kind, type) and issubclass(kind, Struct) and kind not in found:
            found[kind] = None
            inner = [field.type for field in fields(kind)]
        left += reversed(inner)
    return list(found)


def _json_type(kind: Any) -> str:
    """Return a field's type in the words of JSON. The names of objects link to their sections."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin is Literal:
        return ", ".join(f"`{json.dumps(value)}`" for value in inner)
    if origin is Annotated:
        return _json_type(inner[0])
    if origin in (Union, UnionType):
        return " or ".join(map(_json_type, inner))
    if origin is tuple:
        return f"list of {_json_type(inner[0])}"
    if origin is dict:
        return f"object: text to {_json_type(inner[1])}"
    if isinstance(kind, type) and issubclass(kind, Struct):
        return f"[`{kind.__name__}`](#{_anchor(kind.__name__)})"
    return _JSON_TYPES[kind]


_JSON_TYPES: dict[Any, str] = {
    str: "text",
    int: "integer",
    float: "number",
    bool: "`true`, `false`",
    type(None): "`null`",
    Any: "any value",
}


# Numbers of the judge


def judge_numbers() -> str:
    """Return a section for each part of the judge's policy, with each number's value and meaning."""
    parts = []
    for part in fields(POLICY):
        values = getattr(POLICY, part.name)
        meanings = field_meanings(type(values))
        rows = [
            (f"`{one.name}`", _number(getattr(values, one.name)), meanings.get(one.name, "")) for one in fields(values)
        ]
        described = _prose(inspect.cleandoc(type(values).__doc__ or ""))
        parts.append(f"## `{part.name}`\n\n{described}\n\n{_table(('number', 'value', 'meaning'), rows)}")
    return "\n\n".join(parts)


def _number(value: object) -> str:
    if isinstance(value, Struct):
        return ", ".join(f"{one.name} {_number(getattr(value, one.name))}" for one in fields(value))
    if isinstance(value, tuple | list):
        return ", ".join(map(_number, value))
    if isinstance(value, int) and not isinstance(value, bool) and value >= 1 << 10 and value % (1 << 10) == 0:
        power = next(power for power in (30, 20, 10) if value % (1 << power) == 0)
        return f"{value >> power} {({30: 'Gi', 20: 'Mi', 10: 'Ki'})[power]}"
    return f"{value:g}" if isinstance(value, float) else str(value)


# Kernel ABI and keys


def header(problem: str, language: str) -> str:
    """Return the C header of a built-in problem. Example: ``quickstart/rmsnorm cpp``."""
    (spec,) = asyncio.run(inspect_files(resolve([f"builtin:{problem}"], Path.cwd())))
    assert isinstance(spec, ProblemSpec), spec
    return f"```c\n{derive_header(spec, language).rstrip()}\n```"  # type: ignore[arg-type]


def keys(which: str = "monitor") -> str:
    """Return the table of the monitor's keys, or of the replay's keys."""
    chosen = REPLAY_ACTIONS if which == "replay" else ACTIONS
    return _table(("key", "action"), [(f"`{action.shown_key}`", action.help) for action in chosen])


# Markdown


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join("| " + " | ".join(_cell(cell) for cell in line) + " |" for line in lines)


def _cell(text: str) -> str:
    """Return the text as one line, with bars escaped outside code."""
    parts = " ".join(text.split()).split("`")
    return "`".join(part if index % 2 else part.replace("|", "\\|") for index, part in enumerate(parts))


def _prose(text: str) -> str:
    """Convert a docstring to one paragraph of Markdown."""
    return _markdown(" ".join(text.split()))


def _markdown(text: str) -> str:
    """Convert a docstring to Markdown, with single backticks and without roles."""
    return re.sub(r":\w+:`~?([^`]+)`", r"`\1`", text.replace("``", "`"))


def _anchor(heading: str) -> str:
    return re.sub(r"[^\w-]+", "-", heading.lower()).strip("-")


GENERATORS: dict[str, Callable[..., str]] = {
    "commands": commands,
    "exit-codes": exit_codes,
    "config": config,
    "events": events,
    "judge-numbers": judge_numbers,
    "header": header,
    "keys": keys,
}

if __name__ == "__main__":
    main()
