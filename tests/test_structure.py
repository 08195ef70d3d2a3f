"""The code has no import cycles, and its folders stay small."""

from __future__ import annotations

from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).parents[1]
MOST_FILES = 12
MOST_LOOSE_FILES = 8
LONG_LISTS = {"tui/cli", "engine/proposers/playbook/templates", "engine/proposers/llm/prompts"}
"""Folders of commands and of templates may have more files."""


def test_no_import_cycle_between_files() -> None:
    graph = grimp.build_graph("engine", "tui", "kernel_tui", cache_dir=None)
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        pytest.fail(f"import cycle: {' <- '.join(error.args[1])}")


def folders() -> list[str]:
    return [
        folder.relative_to(ROOT).as_posix()
        for top in ("engine", "tui", "kernel_tui")
        for folder in [ROOT / top, *(ROOT / top).rglob("*/")]
        if folder.name != "__pycache__"
    ]


def test_folders_are_small() -> None:
    def files(folder: str) -> int:
        return sum(file.is_file() for file in (ROOT / folder).iterdir())

    too_many = {folder: files(folder) for folder in folders() if files(folder) > MOST_FILES}
    assert too_many.keys() <= LONG_LISTS, too_many
    assert files("engine") <= MOST_LOOSE_FILES


def test_every_package_says_what_it_is_for() -> None:
    for folder in folders():
        file = ROOT / folder / "__init__.py"
        if any((ROOT / folder).glob("*.py")):
            assert file.is_file() and file.read_text().lstrip().startswith('"""'), folder
