"""Text of models and compilers cannot crash, restyle or control the terminal."""

from __future__ import annotations

import random
import re
import sqlite3
import zlib
from typing import Any

import pytest

from benchmarks.hostile import write_hostile_session
from benchmarks.synthetic_session import Shape, write_session
from engine.session.records import events as ev
from engine.session.records.events import decode, encode
from engine.session.records.verdict import BuildReport, CheckResult, Verdict
from engine.session.store import SessionPaths
from tui.text.sanitize import MAX_LINES, clean_line, clean_lines, one_line

SAFE = re.compile(r"[^\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ud800-\udfff\ufeff]*\Z")
PIECES = (
    "\x1b[31m", "\x1b]0;owned\x07", "\x1b]52;c;b3duZWQ=\x07", "\x1bPq\x1b\\", "\x9b31m", "\x9d0;x\x9c", "\r", "\x08",
    "\x00", "\x7f", "[red]", "[/]", "[@click=app.exit]x[/]", "[link=file:///]", "$x", "{x}", "\\[", "\u202eabc",
    "\u200d", "\ufeff", "\ud800", "e\u0301", "漢字", "🧨", "👩‍👩‍👧", "\t", "\n", "\r\n", "a" * 300, " ", "%s",
    "\N{COMBINING ENCLOSING KEYCAP}",
    "<script>", "&amp;", "error: x", "\U000e0041", "\x1b[?1049l", "\x1b[6n", "\x1b[c",
)  # fmt: skip


def hostile(rng: random.Random) -> str:
    return "".join(rng.choice(PIECES) for _ in range(rng.randrange(1, 12)))


def test_10_000_fuzzed_texts_come_out_safe() -> None:
    rng = random.Random(3)
    for _ in range(10_000):
        text = hostile(rng)
        assert SAFE.match(clean_line(text)) and SAFE.match(one_line(text))
        assert all(SAFE.match(line) for line in clean_lines(text))
        assert all(SAFE.match(line) for line in clean_lines(text.encode("utf-8", "surrogatepass")))


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain", "plain"),
        ("\x1b[31mred", "␛[31mred"),
        ("a\tb", "a   b"),
        ("\x9b2J", "�2J"),
        ("\u202egnp.exe", "�gnp.exe"),
        ("x" * 5000, "x" * 2000 + " … 3,000 characters more"),
    ],
)
def test_what_stands_in(text: str, shown: str) -> None:
    assert clean_line(text) == shown


def test_invalid_utf_8_and_endless_lines_are_shown_in_part() -> None:
    assert clean_lines(b"ok \xff\xfe\nnext") == ["ok ��", "next"]
    (line, note) = clean_lines("y" * 10_000_000)
    assert len(line) < 2100 and "characters more" in note
    assert clean_lines("z\n" * 60_000)[-1] == "… 50,000 lines more"
    assert clean_lines("a\nb\n\nc", most=3, whole="cat it has all") == ["a", "b", "", "… 1 line more; cat it has all"]
    assert clean_lines("a\nb\n\nc", most=4) == ["a", "b", "", "c"]
    assert clean_lines("z\n" * 5_000_000)[-1] == "… 4,990,000 lines more"


def poison(paths: SessionPaths, seed: int) -> None:
    """Replace all text of models and compilers with hostile text."""
    rng = random.Random(seed)

    def bad() -> str:
        return hostile(rng).replace("\ud800", "")  # JSON has no lone surrogates; the blobs below hold raw bytes

    with sqlite3.connect(paths.database) as db:
        for seq, json in db.execute("SELECT seq, json FROM event").fetchall():
            event = decode(json)
            if isinstance(event, ev.IdeaProposed):
                event = ev.IdeaProposed(
                    idea=event.idea, problem=event.problem, round=event.round, parent=event.parent, category=bad(),
                    text=bad(), proposer=bad(), data={bad(): bad()},
                )  # fmt: skip
            elif isinstance(event, ev.VariantWritten):
                event = ev.VariantWritten(
                    variant=event.variant, idea=event.idea, problem=event.problem, round=event.round,
                    parent=event.parent, language=event.language, source=event.source, proposer=bad(),
                    note=bad(), data={bad(): [bad()]},
                )  # fmt: skip
            elif isinstance(event, ev.VerdictGiven):
                build = BuildReport(False, 1.0, command=bad(), log="\n".join(bad() for _ in range(20)))
                event = ev.VerdictGiven(
                    variant=event.variant,
                    verdict=Verdict(
                        status=event.verdict.status, reason=bad(), pattern=bad(), device=bad(),
                        speedup=event.verdict.speedup, kernel=event.verdict.kernel,
                        checks=(CheckResult(bad(), False, bad()),), build=build, sandbox=bad(),
                        flags=(bad(),), output_tail=bad() * 10, stage_s={bad(): 1.0},
                    ),
                )  # fmt: skip
            elif isinstance(event, ev.LogLine):
                event = ev.LogLine(level="error", text=bad())
            elif isinstance(event, ev.RoundFinished):
                event = ev.RoundFinished(
                    problem=event.problem,
                    round=event.round,
                    selected=tuple(ev.Selected(one.variant, bad()) for one in event.selected),
                    dropped=tuple(ev.Selected(one.variant, bad()) for one in event.dropped),
                )
            db.execute("UPDATE event SET json = ? WHERE seq = ?", (encode(event).decode(), seq))
        for (digest,) in db.execute("SELECT digest FROM blob").fetchall():
            raw = "".join(hostile(rng) for _ in range(40)).encode("utf-8", "surrogatepass") + rng.randbytes(50)
            db.execute("UPDATE blob SET compressed = ? WHERE digest = ?", (zlib.compress(raw), digest))
    db.close()


@pytest.mark.parametrize("seed", [1, 2])
async def test_every_pane_survives_hostile_texts(open_monitor: Any, tmp_path: Any, seed: int) -> None:
    paths = write_session(tmp_path, "hostile", Shape(variants=40, problems=2, rounds=3))
    poison(paths, seed)
    async with open_monitor(paths, (200, 60)) as monitor:
        await monitor.press("asterisk", "asterisk")
        for _ in range(5):
            for _ in range(6):
                await monitor.press("j")
            assert all(SAFE.match(line) for line in monitor.text().splitlines())
            await monitor.pilot.pause(0.1)
            await monitor.press("right_square_bracket")
        await monitor.press("t", "D", "question_mark", "escape", "d", "slash", *"red", "enter", "escape")
        for number in "1234567":
            await monitor.press(number)
            assert all(SAFE.match(line) for line in monitor.text().splitlines())
        for strip in monitor.app.screen._compositor.render_strips():
            for segment in strip:
                assert SAFE.match(segment.text)
                assert segment.style is None or segment.style.link is None


async def test_of_a_million_lines_the_first_are_shown_and_what_shows_all(open_monitor: Any, tmp_path: Any) -> None:
    paths = write_hostile_session(tmp_path, "giant", ["z\n" * 1_000_000], ended=True)
    async with open_monitor(paths) as monitor:
        detail = monitor.app.monitor_screen.detail
        await monitor.press("asterisk", "asterisk")
        while monitor.row() != "v1":
            await monitor.press("j")
        await monitor.press("4")
        shown: dict[str, int] = {}
        while detail.tab not in shown:
            if detail.tab == "Calls":
                await monitor.press("v")
            shown[detail.tab] = len(detail.view.lines)
            last = "".join("".join(strip.text for strip in detail.view.lines[-300:]).split())
            if detail.tab in ("Kernel", "Why"):
                node = "v1" if detail.tab == "Kernel" else "i1"
                assert re.search(rf"990,00[01]linesmore;fulltext:kernel-tuishow\S+/giant{node}--json", last)
            elif detail.tab == "Calls":
                assert "linesmore" in last
            await monitor.press("right_square_bracket")
        assert set(shown) == {"Kernel", "Diff", "Evidence", "Why", "Leaders", "Calls", "ASM", "Charts"}
        assert all(count < 3 * MAX_LINES for count in shown.values()), shown
        assert min(shown[tab] for tab in ("Kernel", "Evidence", "Why", "Calls")) >= MAX_LINES
