"""Configs as users write them: valid, wrong, and wrong in many places at once."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import get_args

import pytest
from pydantic import ValidationError

from engine.config.renamed_keys import deprecations
from engine.config.schema import (
    PRESETS,
    Config,
    ConfigError,
    EvaluationConfig,
    GeminiModel,
    OpenAIModel,
    load_config,
    load_evaluation,
    parse_config,
    preset_text,
)
from engine.config.source_locations import key_lines, line_of
from engine.config.values import Table

ROOT = Path(__file__).parents[2]
MINIMAL = 'problems = ["builtin:quickstart/softmax"]\n'


def errors_of(text: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        parse_config(text, "config.toml")
    return str(caught.value).splitlines()


def test_a_list_of_problems_is_enough() -> None:
    config = parse_config(MINIMAL, "/somewhere/config.toml")
    assert config.search.strategy == "beam"
    assert config.evaluation.devices == ("auto",)
    assert [model.provider for model in config.models] == ["playbook"]
    assert config.sessions == Path("/somewhere/sessions")
    assert config.path == Path("/somewhere/config.toml")


@pytest.mark.parametrize(
    ("file", "problems", "name"),
    [
        ("mine.toml", '["a.py", "b.py"]', "mine"),
        ("config.toml", '["kernels/attention.py"]', "attention"),
        ("config.toml", '["builtin:quickstart/gelu"]', "gelu"),
        ("config.toml", '["a.py", "b.py"]', "my-project"),
        ("config.toml", '["all/*"]', "my-project"),
        ("größe 2.toml", '["a.py"]', "gr-e-2"),
    ],
)
def test_a_session_without_a_name_is_called_as_a_person_would_look_for_it(file: str, problems: str, name: str) -> None:
    assert parse_config(f"problems = {problems}\n", f"/somewhere/my project/{file}").name == name


@pytest.mark.parametrize("preset", PRESETS)
def test_presets_load(preset: str, tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text(preset_text(preset))  # type: ignore[arg-type]
    config = load_config(file)
    assert config.name == preset
    assert config.sessions == tmp_path / "sessions"


def test_the_published_preset_is_the_published_method() -> None:
    config = parse_config(preset_text("published"), "config.toml")
    assert len(config.problems) == 10
    assert config.search.rounds == 5
    assert [type(model) for model in config.models] == [OpenAIModel, GeminiModel]


def test_the_repository_runs_the_quickstart() -> None:
    assert (ROOT / "config.toml").read_text() == preset_text("quickstart")


def test_the_quickstart_spells_out_the_defaults() -> None:
    written = tomllib.loads(preset_text("quickstart"))
    config = parse_config(MINIMAL, "config.toml")
    assert written["search"] == config.search.model_dump(mode="json")
    assert parse_config(preset_text("quickstart"), "config.toml").evaluation == config.evaluation


@pytest.mark.parametrize("preset", ["quickstart", "headline"])
def test_models_that_a_preset_only_mentions_are_right_once_the_marks_are_taken_away(preset: str) -> None:
    playbook, mentioned = preset_text(preset).split("# Language models:")  # type: ignore[arg-type]
    tables = re.sub(r"(?m)^# ?", "", mentioned[mentioned.index("# [[models]]") :])
    config = parse_config(playbook + tables, "config.toml")
    assert [model.provider for model in config.models] == [
        *("playbook", "openai", "gemini", "anthropic", "openai", "command", "manual"),
    ]


def test_every_fault_is_reported_in_one_go_with_its_line() -> None:
    text = """\
name = "my search"
problems = ["builtin:quickstart/softmax"]
seeed = 3

[search]
rounds = "4"
strategy = "bram"
variants = 0

[evaluation]
trials = 2
deadline_s = nan
torch_compile = 1
device = "tpu"
tolerance = 7
memory_limit = "a lot"
"""
    assert errors_of(text) == [
        "config.toml:1: name: 'my search' is not a valid session name; use at most 64 letters, digits, '.', '_' and "
        "'-', and start with a letter or digit",
        'config.toml:3: seeed: unknown key; did you mean "seed"?',
        "config.toml:6: search.rounds: '4' (text) is not allowed; use a whole number",
        'config.toml:7: search.strategy: \'bram\' is not allowed; use "beam", "greedy", "serial" or "random"',
        "config.toml:8: search.variants: 0 is not allowed; use 1 or more",
        "config.toml:11: evaluation.trials: 2 is not allowed; use 3 or more",
        "config.toml:12: evaluation.deadline_s: nan is not allowed; use a finite number",
        "config.toml:13: evaluation.torch_compile: 1 (a number) is not allowed; use true or false",
        'config.toml:14: evaluation.device: no device is called \'tpu\'; use "auto", "cpu", "cuda", "cuda:1", '
        'or a list such as ["cuda:0", "cuda:1"]',
        'config.toml:15: evaluation.tolerance: 7 is not a tolerance; use "kernelbench" (1e-4 in fp32, 1e-2 in half '
        'precision), "crfm" (1e-2) or a number between 0 and 1',
        'config.toml:16: evaluation.memory_limit: \'a lot\' is not a size; use "auto" or a size such as "4GiB" or '
        '"500MB"',
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (MINIMAL + "rounds = 3\n", "config.toml:2: rounds: this key belongs in [search]; move it there"),
        (MINIMAL + "[serach]\nrounds = 3\n", 'config.toml:2: serach: unknown key; did you mean "search"?'),
        (MINIMAL + "[search]\nideals = 3\n", 'config.toml:3: search.ideals: unknown key; did you mean "ideas"?'),
        (MINIMAL + "search = 3\n", "config.toml:2: search: 3 (a number) is not allowed; use a table"),
        ("seed = 1\n", "config.toml:1: problems: this key is missing; list the problems to search"),
        ('problms = ["a.py"]\n', 'config.toml:1: problms: unknown key; did you mean "problems"?'),
        (
            MINIMAL + "[profile]\ncounter = true\n",
            'config.toml:3: profile.counter: unknown key; did you mean "counters"?',
        ),
        (
            MINIMAL + "[budget.per_problem]\ndolars = 1\n",
            'config.toml:3: budget.per_problem.dolars: unknown key; did you mean "dollars"?',
        ),
        (
            MINIMAL + '[[models]]\nprovider = "openai"\nmodel = "m"\n[models.budget]\ndolars = 1\n',
            'config.toml:6: models[1].budget.dolars: unknown key; did you mean "dollars"?',
        ),
        (
            MINIMAL + '[[models]]\nprovider = "manual"\ncommand = ["agent"]\n',
            "config.toml:4: models[1].command: unknown key; use one of weight, roles, provider",
        ),
        (
            MINIMAL + '[[models]]\nprovider = "openai"\nmodl = "m"\n',
            'config.toml:4: models[1].modl: unknown key; did you mean "model"?',
        ),
        (
            MINIMAL + '[[models]]\nprovidr = "playbook"\n',
            'config.toml:2: models[1]: unknown key providr; did you mean "provider"?',
        ),
        ("problems = []\n", "config.toml:1: problems: the list is empty; add at least one entry"),
        (
            'problems = [\n  "a.py",\n  3,\n]\n',
            "config.toml:3: problems[2]: 3 (a number) is not allowed; use text in quotes",
        ),
        ("problems = [\n", "config.toml:2: invalid TOML: Invalid value at the end of the file"),
        (
            f"problems = {5000 * '['}{5000 * ']'}\n",
            "config.toml: invalid TOML: tables or arrays are nested too deeply",
        ),
        ("seed = 1\nseed = = 2\n", "config.toml:2: invalid TOML: Invalid value (column 8)"),
    ],
)
def test_one_fault(text: str, expected: str) -> None:
    assert errors_of(text) == [expected]


TABLES = [
    key
    for key, field in Config.model_fields.items()
    if any(
        isinstance(kind, type) and issubclass(kind, Table) for kind in (field.annotation, *get_args(field.annotation))
    )
]


@pytest.mark.parametrize("table", TABLES)
def test_an_unknown_key_in_any_table_is_a_fault(table: str) -> None:
    (error,) = errors_of(f"{MINIMAL}[{table}]\nqqqqq = 1\n")
    assert error.startswith(f"config.toml:3: {table}.qqqqq: unknown key; use one of ")


def test_faults_in_models_name_the_entry_and_its_line() -> None:
    text = (
        MINIMAL
        + """
[[models]]
provider = "openai"
effort = "huge"

[[models]]
provider = "gemni"

[[models]]
provider = "gemini"
model = "gemini-3.5-pro"
thinking_level = "high"
thinking_budget = 1000
"""
    )
    assert errors_of(text) == [
        "config.toml:3: models[1].model: this key is missing",
        'config.toml:5: models[1].effort: \'huge\' is not allowed; use "none", "minimal", "low", "medium", "high" '
        'or "xhigh"',
        'config.toml:7: models[2]: no provider is called \'gemni\'; use "playbook", "openai", "gemini", "anthropic", '
        '"command", "manual" or "replay"',
        "config.toml:10: models[3]: this table sets both thinking_level and thinking_budget; remove one of them",
    ]


@pytest.mark.parametrize("key", ["api_key", "apikey", "API-KEY", "openai_api_key", "token", "password"])
def test_keys_in_the_file_are_refused_and_never_repeated(key: str) -> None:
    text = MINIMAL + f'[[models]]\nprovider = "openai"\nmodel = "m"\n{key} = "sk-secret"\n'
    (line,) = errors_of(text)
    assert line == (
        f"config.toml:5: models[1].{key}: this file must not contain API keys; "
        "set the environment variable OPENAI_API_KEY instead"
    )


@pytest.mark.parametrize("entry", ['key_env = "sk-secret"', 'base_url = "https://me:sk-secret@example.com/v1"'])
def test_a_key_in_another_place_is_refused_and_never_repeated(entry: str) -> None:
    (line,) = errors_of(MINIMAL + f'[[models]]\nprovider = "openai"\nmodel = "m"\n{entry}\n')
    assert "key" in line
    assert "sk-secret" not in line


def test_paths_are_relative_to_the_config() -> None:
    text = 'problems = ["mine/*.py", "/abs/one.py", "builtin:headline/softmax"]\nsessions = "../saved"\n'
    config = parse_config(text, "/project/conf/config.toml")
    assert config.problems == ("/project/conf/mine/*.py", "/abs/one.py", "builtin:headline/softmax")
    assert config.sessions == Path("/project/conf/../saved")


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ('"4GiB"', 4 << 30),
        ('"500MB"', 500_000_000),
        ('"1.5 gib"', 3 << 29),
        ("1073741824", 1 << 30),
        ('"auto"', "auto"),
    ],
)
def test_memory_limit_in_the_units_people_write(written: str, expected: int | str) -> None:
    config = parse_config(MINIMAL + f"[evaluation]\nmemory_limit = {written}\n", "config.toml")
    assert config.evaluation.memory_limit == expected


@pytest.mark.parametrize(
    ("written", "fp32", "fp16"), [('"crfm"', 1e-2, 1e-2), ('"kernelbench"', 1e-4, 1e-2), ("0.001", 1e-3, 1e-3)]
)
def test_tolerance_by_output_type(written: str, fp32: float, fp16: float) -> None:
    evaluation = parse_config(MINIMAL + f"[evaluation]\ntolerance = {written}\n", "config.toml").evaluation
    assert (evaluation.tolerance_for("float32"), evaluation.tolerance_for("float16")) == (fp32, fp16)


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ('"cpu"', ("cpu",)),
        ('"cuda:1"', ("cuda:1",)),
        ('["cuda:0", "cuda:2"]', ("cuda:0", "cuda:2")),
        ('["auto"]', ("auto",)),
    ],
)
def test_devices(written: str, expected: tuple[str, ...]) -> None:
    assert parse_config(MINIMAL + f"[evaluation]\ndevice = {written}\n", "c.toml").evaluation.devices == expected


@pytest.mark.parametrize("preset", PRESETS)
def test_a_frozen_config_says_the_same_from_anywhere(preset: str) -> None:
    config = parse_config(preset_text(preset), "/here/config.toml")  # type: ignore[arg-type]
    again = parse_config(config.frozen_toml(), "/elsewhere/sessions/s/config.toml")
    assert again.model_dump() == config.model_dump()
    assert again.frozen_toml() == config.frozen_toml()


OLD = 'name = "a"\nproblems = ["builtin:quickstart/softmax"]\nbank = ["old"]\n[search]\nheat = 3\nsurvivors = 5\n'
NEW = OLD.replace("bank", "warm_start").replace("heat", "runoff").replace("survivors", "parents")


def test_keys_of_older_configs_are_read_and_named_with_their_new_name(tmp_path: Path) -> None:
    assert parse_config(OLD, "config.toml") == parse_config(NEW, "config.toml")
    assert parse_config(OLD, "config.toml").search.parents == 5
    file = tmp_path / "config.toml"
    file.write_text(OLD)
    said = [line.removeprefix(str(file)) for line in deprecations(file)]
    assert [(line.split(":")[1], *re.findall(r"[\w.]*(?:bank|warm_start|heat|runoff|survivors|parents)", line))
            for line in said] == [
        ("3", "bank", "warm_start"), ("5", "search.heat", "search.runoff"), ("6", "search.survivors", "search.parents")
    ]  # fmt: skip
    file.write_text(NEW)
    assert deprecations(file) == []


def test_a_wrong_value_under_an_old_key_is_found_on_its_line() -> None:
    (error,) = errors_of(OLD.replace("survivors = 5", "survivors = 0"))
    assert error.startswith("config.toml:6: search.parents: ")
    assert errors_of(OLD + "parents = 2\n")[0].startswith("config.toml:6: search.survivors: unknown key")


def test_a_config_cannot_be_changed() -> None:
    config = parse_config(MINIMAL, "config.toml")
    with pytest.raises(ValidationError):
        config.search.rounds = 9  # type: ignore[misc]


def test_one_kernel_is_judged_by_a_file_without_problems(tmp_path: Path) -> None:
    file = tmp_path / "how.toml"
    file.write_text('[evaluation]\ndevice = "cpu"\ntrials = 5\n')
    assert load_evaluation(file) == EvaluationConfig(device="cpu", trials=5)
    with pytest.raises(ConfigError, match="problems: this key is missing"):
        load_config(file)
    file.write_text("")
    assert load_evaluation(file) == EvaluationConfig()
    file.write_text(f"{MINIMAL}[evaluation]\ntrials = 5\n[search]\nrounds = 2\n")
    assert load_evaluation(file).trials == 5
    for text, fault in (
        ("[evaluation]\ntrial = 5\n", 'how.toml:2: evaluation.trial: unknown key; did you mean "trials"?'),
        ("[evalution]\ntrials = 5\n", 'how.toml:1: evalution: unknown key; did you mean "evaluation"?'),
        ("problems = []\n", "how.toml:1: problems: the list is empty; add at least one entry"),
    ):
        file.write_text(text)
        with pytest.raises(ConfigError) as caught:
            load_evaluation(file)
        assert str(caught.value).endswith(fault)


def test_files_that_cannot_be_read_say_what_to_do(tmp_path: Path) -> None:
    latin = tmp_path / "latin.toml"
    latin.write_bytes("name = 'é'".encode("latin-1"))
    for path, expected in [
        (tmp_path / "none.toml", "no such file; create a config with: kernel-tui init"),
        (tmp_path / "latn.toml", f"no such file; did you mean {latin}?"),
        (tmp_path / "none.py", f"no such file; to look for a problem file: kernel-tui problems {tmp_path / 'none.py'}"),
        (tmp_path, "is a directory"),
        (latin, "is not UTF-8 text (byte 8)"),
    ]:
        with pytest.raises(ConfigError, match=r"^\S+: ") as caught:
            load_config(path)
        assert expected in str(caught.value)
        assert str(path) in str(caught.value)


def test_windows_line_ends_and_a_byte_order_mark_do_no_harm(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_bytes(b"\xef\xbb\xbf" + MINIMAL.replace("\n", "\r\n").encode() + b"seed = 5\r\n")
    assert isinstance(load_config(file), Config)
    assert load_config(file).seed == 5


def test_lines_of_keys_in_every_shape_that_toml_has() -> None:
    text = '''\
a = """
b = 1 # not a key
"""
c.d."e.f" = { g = 1, "h]" = [2, 3] } # } comment
list = [ # [
    "x, y", 'z]',

    { k = "]" },
]
[t.u]
v = \'\'\'it\'s
[no.table]\'\'\'
w = "quote \\" # still text"
[[rows]]
n = 1
[[rows.sub]]
m = 1
[rows.sub.deep]
q = 1979-05-27 07:32:00
[[rows]]
n = 2
[[rows.sub]]
'last key' = -0.5
'''
    tomllib.loads(text)
    lines = key_lines(text)
    assert lines[("a",)] == 1
    assert ("b",) not in lines
    assert lines[("c", "d", "e.f", "h]")] == 4
    assert lines[("list", 1)] == 6
    assert lines[("list", 2, "k")] == 8
    assert lines[("t", "u")] == 10
    assert lines[("t", "u", "w")] == 13
    assert lines[("rows", 0, "sub", 0, "m")] == 17
    assert lines[("rows", 0, "sub", 0, "deep", "q")] == 19
    assert lines[("rows", 1, "n")] == 21
    assert lines[("rows", 1, "sub", 0, "last key")] == 23
    assert ("no", "table") not in lines
    assert line_of(lines, ("rows", 1, "absent")) == 20
    assert line_of(lines, ("absent",)) == 1
