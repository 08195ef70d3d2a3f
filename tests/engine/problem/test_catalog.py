"""Config entries become problem specifications, through a real inspection process."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from engine.problem.catalog import CatalogError, builtin_names, inspect_files, resolve, table
from engine.problem.failure import ProblemFailure
from engine.problem.spec import ProblemSpec
from tests.patience import PATIENCE_S

GOOD = """
import torch
class Model(torch.nn.Module):
    def forward(self, x):
        return x + 1
def get_inputs():
    return [torch.rand(4)]
def get_init_inputs():
    return []
"""


def written(directory: Path, **sources: str) -> list[Path]:
    paths = []
    for name, source in sources.items():
        paths.append(directory / f"{name}.py")
        paths[-1].write_text(source)
    return paths


def test_entries_are_paths_directories_globs_and_builtins(tmp_path: Path) -> None:
    (tmp_path / "more").mkdir()
    one, two = written(tmp_path, one=GOOD, two=GOOD)
    (three,) = written(tmp_path / "more", three=GOOD)

    found = resolve(["two.py", "more", "*.py", str(one), "builtin:quickstart/softmax"], tmp_path)

    assert [file.path for file in found[:3]] == [two, three, one]
    assert [file.id for file in found] == ["two", "three", "one", "softmax"]


def test_globs_go_through_any_directories_and_no_links(tmp_path: Path) -> None:
    deep = tmp_path / "a" / "b" / "c"
    deep.mkdir(parents=True)
    (deep / "around").symlink_to(tmp_path)
    (three,) = written(deep, three=GOOD)
    (one,) = written(tmp_path, one=GOOD)

    for entry, expected in {
        "**/*.py": [three, one],
        "a/**/**/*.py": [three],
        "*/?/c/three.py": [three],
        f"{tmp_path}/[a-m]/*/../b/c/*": [three],
        "**/three.py": [three],
    }.items():
        assert [file.path for file in resolve([entry], tmp_path)] == expected


@pytest.mark.parametrize(
    ("entry", "said"), [("/**/*", "matches more than 10,000"), ("/**/nobody", "takes more than 0.2 s")]
)
def test_a_glob_over_a_whole_file_system_is_refused(
    entry: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if entry.endswith("nobody"):
        monkeypatch.setattr("engine.system.globbing.MOST_S", 0.2)
    with pytest.raises(CatalogError, match=said) as caught:
        resolve([entry], tmp_path)
    assert "narrower pattern" in str(caught.value)


def test_files_of_one_name_get_ids_by_their_directories(tmp_path: Path) -> None:
    files = resolve(["builtin:quickstart/softmax", "builtin:headline/softmax", "builtin:headline/conv2d"], tmp_path)

    assert [file.id for file in files] == ["quickstart_softmax", "headline_softmax", "conv2d"]


def test_every_bad_entry_is_reported(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "notes.txt").write_text("")

    with pytest.raises(CatalogError) as caught:
        resolve(["missing.py", "empty", "no*/x.py", "notes.txt", "builtin:headline/nothing"], tmp_path)

    messages = dict(caught.value.entries)
    assert len(messages) == 5
    assert str(tmp_path / "missing.py") in messages["missing.py"]
    assert "quickstart/softmax" in messages["builtin:headline/nothing"]


async def test_every_packaged_problem_has_a_c_form(tmp_path: Path) -> None:
    files = resolve(["builtin:*/*"], tmp_path)

    specs = await inspect_files(files)

    assert len(specs) == len(builtin_names()) == 18
    assert [spec.id for spec in specs if not isinstance(spec, ProblemSpec) or spec.c_refusal or not spec.graph] == []


async def test_failures_say_file_line_and_what_was_raised(tmp_path: Path) -> None:
    paths = written(
        tmp_path,
        a_syntax="import torch\nclass Model(\n",
        b_raises=GOOD.replace("return x + 1", "return x @ torch.rand(3)"),
        c_exits="import sys\nsys.exit(3)\n",
        d_nothing="x = 1\n",
        e_import="import torch\nimport a_package_that_is_not_there\n",
        f_good=GOOD,
    )

    answers = await inspect_files([*paths, tmp_path / "gone.py"])

    assert isinstance(answers[5], ProblemSpec)
    failures = [answer for answer in answers if isinstance(answer, ProblemFailure)]
    assert [failure.id for failure in failures] == ["a_syntax", "b_raises", "c_exits", "d_nothing", "e_import", "gone"]
    texts = [str(failure) for failure in failures]
    assert f"{paths[0]}:2: SyntaxError" in texts[0] or f"{paths[0]}:3: SyntaxError" in texts[0]
    assert f"{paths[1]}:5: the file raised RuntimeError" in texts[1]
    assert f"{paths[2]}:2: the file raised SystemExit" in texts[2]
    assert "does not define `Model`" in texts[3]
    assert f"{paths[4]}:2: the file imports `a_package_that_is_not_there`" in texts[4]
    assert "no such file" in texts[5]


async def test_a_file_that_hangs_crashes_or_prints_takes_no_other_with_it(tmp_path: Path) -> None:
    paths = written(
        tmp_path,
        a_hangs="import time\nwhile True:\n    time.sleep(1)\n",
        b_crashes="import os\nos.kill(os.getpid(), 11)\n",
        c_prints='import os\nfor _ in range(100):\n    os.write(1, b"x" * 100_000)\n' + GOOD,
        d_greedy="x = [0] * (1 << 33)\n" + GOOD,
        e_good=GOOD,
    )

    answers = await inspect_files(paths[:1], limit_s=2) + await inspect_files(paths[1:])

    assert [type(answer) for answer in answers] == [ProblemFailure] * 2 + [ProblemSpec, ProblemFailure, ProblemSpec]
    assert f"{paths[0]}:3: the inspection took longer than 2 s" in str(answers[0])
    assert "SIGSEGV" in str(answers[1])
    assert f"{paths[3]}:1: the file exceeded the memory limit" in str(answers[3])


async def test_what_a_file_leaves_running_is_not_waited_for(tmp_path: Path) -> None:
    leaves = "import os, time\nif os.fork() == 0:\n    os.setsid()\n    os.closerange(3, 64)\n    os.close(1)\n"
    leaves += f"    time.sleep({2 * PATIENCE_S})\nos._exit(3)\n"
    started = time.monotonic()

    (answer,) = await inspect_files(written(tmp_path, leaves=leaves))

    assert "ended with exit status 3" in str(answer)
    assert time.monotonic() - started < PATIENCE_S


async def test_a_broken_torch_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (broken := tmp_path / "site" / "torch").mkdir(parents=True)
    (broken / "__init__.py").write_text("raise ImportError('libtorch.so: cannot open shared object file')")
    monkeypatch.setenv("PYTHONPATH", str(broken.parent))

    (failure,) = await inspect_files(written(tmp_path, good=GOOD))

    assert "import PyTorch: libtorch.so" in str(failure)


async def test_cancelling_ends_the_child(tmp_path: Path) -> None:
    paths = written(tmp_path, hangs="import time\ntime.sleep(600)\n")
    task = asyncio.create_task(inspect_files(paths))
    await asyncio.to_thread(_wait_for_child, os.getpid())
    children = psutil.Process().children()

    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert not any(child.is_running() and "engine.problem.inspection" in child.cmdline() for child in children)


def test_the_child_dies_with_a_killed_engine(tmp_path: Path) -> None:
    (path,) = written(tmp_path, hangs="import time\ntime.sleep(600)\n")
    program = (
        "import asyncio, sys\nfrom pathlib import Path\nfrom engine.problem.catalog import inspect_files\n"
        "asyncio.run(inspect_files([Path(sys.argv[1])]))\n"
    )
    root = Path(__file__).resolve().parents[3]
    with subprocess.Popen([sys.executable, "-c", program, str(path)], cwd=root) as engine:
        # The child asks for a signal on its parent's death before it imports torch, so wait for that import.
        child = _wait_for_child(engine.pid)
        os.kill(engine.pid, signal.SIGKILL)

    _, alive = psutil.wait_procs([child], timeout=PATIENCE_S)
    assert alive == []


def _wait_for_child(pid: int) -> psutil.Process:
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        for child in psutil.Process(pid).children():
            if any("torch" in mapped.path for mapped in child.memory_maps()):
                return child
        time.sleep(0.05)
    raise AssertionError("no inspection process appeared")


def test_the_catalogue_does_not_import_torch() -> None:
    program = "import sys, engine.problem.catalog, engine.problem.c_header; sys.exit('torch' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", program], cwd=Path(__file__).parents[3], check=False).returncode == 0


async def test_the_table_names_shapes_forms_and_refusals(tmp_path: Path) -> None:
    dropout = GOOD.replace("x + 1", "torch.dropout(x, 0.5, True)")
    written(tmp_path, a_good=GOOD, b_dropout=dropout, c_broken="1 / 0\n")

    good, random, broken = await table(resolve(["."], tmp_path))

    assert (good.inputs, good.outputs, good.languages) == (
        ("x (4,) float32",),
        ("out (4,) float32",),
        ("cu", "cpp", "py", "triton"),
    )
    assert random.languages == ("py", "triton") and "random" in random.remark
    assert broken.languages == () and "ZeroDivisionError" in broken.remark
