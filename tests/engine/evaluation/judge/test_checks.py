"""Each check names threats of the threat model."""

from __future__ import annotations

import re
from pathlib import Path

from engine.evaluation.judge import checks

EXPLANATION = Path(__file__).parents[4] / "docs" / "explanation"
ALL = (*checks.WHILE_LOADING, *checks.WHILE_CHECKING, *checks.WHILE_TIMING, *checks.AFTER_TIMING, *checks.AFTERWARDS)


def test_each_check_names_threats_of_the_threat_model() -> None:
    known = set(re.findall(r"(?m)^\| `([a-z-]+)` \|", (EXPLANATION / "threat-model.md").read_text()))
    assert known
    for check in ALL:
        assert check.name and set(check.threat.split(", ")) <= known, check.name


def test_the_page_lists_the_checks_in_their_order() -> None:
    table = (EXPLANATION / "judge.md").read_text().split("| check, as the verdict names it |")[1].split("\n\n")[0]
    listed = re.findall(r"(?m)^\| ([a-z ]+?)(?: \(.*?\))? \| (.*?) \|", table)
    assert listed == [(check.name, check.threat) for check in ALL]
