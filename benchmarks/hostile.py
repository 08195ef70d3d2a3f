"""Generate hostile texts like those of a malicious model, compiler or kernel, and sessions that contain such texts.

Every escape sequence in the hostile texts contains the number 777, which the monitor never writes. ``faults_of`` finds
the sequences that reach a terminal.
"""

from __future__ import annotations

import contextlib
import random
import re
import sqlite3
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.synthetic_session import reading
from engine.devices.fact import DeviceFact
from engine.devices.sample import DeviceSample, encode_samples
from engine.problem.spec import ProblemSpec, TensorSpec
from engine.proposers.partial_replies import Partials
from engine.session.records import events as ev
from engine.session.records.events import AnyEvent, Selected, encode, kind_of
from engine.session.records.model_calls import CallSite, Usage, call_name
from engine.session.records.other_sizes import AtSizes
from engine.session.records.verdict import Baseline, BuildReport, CheckResult, Timing, Verdict
from engine.session.store import SessionPaths, create_session

PIECES: tuple[str, ...] = (
    # sequences that color, move, clear, query, set titles and clipboards, link, and leave the alternate screen
    "\x1b[31;777m", "\x1b[777;777H", "\x1b[777J", "\x1b[777n", "\x1b[777c", "\x1b[?777h", "\x1b[?1049;777l", "\x1b7",
    "\x1b]0;777 owned\x07", "\x1b]52;c;777b3duZWQ=\x07", "\x1b]8;;http://777\x1b\\", "\x1b]9;777\x1b\\",
    "\x1b]1337;777",
    "\x1bP777q#0\x1b\\", "\x1bP+q777\x1b\\", "\x1b_777G\x1b\\", "\x1b^777\x1b\\", "\x1bX777\x1b\\", "\x1b[200~777",
    "\x1b",    "\x9b777m", "\x9b777;777H", "\x9d0;777\x9c", "\x90777q\x9c", "\x9f777\x9c", "\x84", "\x85",
    # control characters
    *map(chr, range(0x20)), "\x7f", "\r", "\r\n", "\n", "\n\n", "\t", "\t\t\t", "\x08" * 40, "\x0b", "\x0c", "\x00" * 9,
    # markup of Rich and Textual, format strings, shell syntax
    "[red]", "[/]", "[/red]", "[@click=app.exit]777[/]", "[link=file:///777]", "[[", "]]", "\\[", "[b", "$text", "{x}",
    "{0.__class__}", "%s%n", "`reboot`", "$(reboot)", "<script>", "&amp;", "'", '"', "\\", "\\x1b[777m", ":warning:",
    # bidirectional, zero width, joiners, tags, variation selectors, combining, wide, private use, non-characters
    "\u202eabc\u202c", "\u2066\u2069", "\u200b", "\u200d", "\u200e", "\ufeff", "\u2028", "\u2029", "\u00ad", "\u180e",
    "e\u0301", "\u0301" * 60, "a\u20dd", "\u0e49" * 20, "漢字", "ｱｲｳ", "ＡＢ", "한글", "🧨", "\u115f", "\u3164",
    "👩\u200d👩\u200d👧", "🇩🇪", "❤\ufe0f", "\U000e0041", "\ue0b0", "\ufffe", "\uffff", "\U0010ffff", "\U0001fbc5",
    # harmless text
    "ﷺ", "𒐫", "İ", "ß", "a", " ", "   ", "error: x", "warning", "v1", "softmax", "9.99x", "a" * 300,
    "word " * 40, "-" * 90, "0" * 40,
)  # fmt: skip
LONE = ("\ud800", "\udfff", "\ud83d")
"""Lone surrogates, which occur in Python strings and in blobs, but not in JSON."""
GIANT = 10_000_000

UNSAFE = re.compile(
    "[\x00-\x1f\x7f-\x9f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff\ufffe\uffff"
    "\U000e0000-\U000e0fff]"
)
SEQUENCE = re.compile(
    r"\x1b\[[\x30-\x3f]*[\x20-\x2f]*[\x40-\x7e]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[PX^_][^\x1b]*\x1b\\|\x1b[\x20-\x7e]"
)
ALLOWED = re.compile(
    r"""\x1b\[[\d;]*m
      | \x1b\[\d+;\d+H
      | \x1b\[\?(?:7|25|1000|1002|1003|1004|1006|1015|1049|2004|2026|2031|2048)[hl]
      | \x1b\[\?(?:2026|2048)\$p
      | \x1b\[[<>=]\d*u
      | \x1b\]22;[a-z]*\x07
      | \x1b\[\?1049[hl]""",
    re.VERBOSE,
)
"""Sequences that Textual writes: colors, positions, terminal modes, pointer shape."""


def hostile(rng: random.Random, *, lone: bool = False) -> str:
    """Return a text that consists of several hostile pieces. ``lone`` adds lone surrogates."""
    pieces = (*PIECES, *LONE) if lone else PIECES
    return "".join(rng.choices(pieces, k=rng.randrange(1, 12)))


def unsafe_in(shown: str) -> str | None:
    """Return the first character that must not reach the screen. Return None if there is none."""
    found = UNSAFE.search(shown)
    return found.group() if found is not None else None


def faults_of(painted: bytes) -> list[str]:
    """Return the sequences in the terminal's output that neither Textual nor the monitor writes."""
    try:
        text = painted.decode()
    except UnicodeDecodeError as error:
        return [f"invalid UTF-8: {painted[error.start - 20 : error.end + 20]!r}"]
    faults = [found for found in SEQUENCE.findall(text) if not ALLOWED.fullmatch(found) or "777" in found]
    rest = SEQUENCE.sub("", text)
    faults += sorted({found for found in UNSAFE.findall(rest) if found not in "\r\n"})
    return [repr(one) for one in faults]


class HostileSearch:
    """Generate the events of a search whose texts all come from ``texts``.

    Each kernel contains ``per_page`` texts, in its source, build log, checks and remarks.
    """

    per_page = 20

    def __init__(self, texts: Sequence[str]) -> None:
        self.texts = texts
        self.large = max(map(len, texts)) > 100_000
        """Whether the texts are large. Large texts appear only in a few fields, to limit the size of the session."""
        self.blobs: dict[str, bytes] = {}
        self._next = 0

    def text(self) -> str:
        self._next += 1
        return "large" if self.large else self.texts[self._next % len(self.texts)]

    def events(self, *, ended: bool) -> Iterator[AnyEvent]:
        text = self.text
        device = DeviceFact(id="GPU-1", kind="cuda", name=text(), arch=text(), memory_bytes=1 << 37, cores=132)
        yield ev.EngineStarted(pid=1, host=text(), version=text(), resumed=False, devices=(device,), sandbox=text())
        yield ev.DeviceAwaited(device="GPU-1", pid=2, command=text(), held_since=1.0, seconds=1.0)
        yield ev.DeviceFree(device="GPU-1", seconds=11.0)
        for number, name in enumerate(("softmax", text() or "x")):
            yield ev.ProblemAdded(problem=_spec(name, text()), language="cu", header=text())
            yield ev.BaselineMeasured(problem=name, baseline=Baseline("eager", _timing(4.0)), sol_ms=0.9)
            failed = Baseline("compile", None, precision=text(), note=text(), failure=text())
            yield ev.BaselineMeasured(problem=name, baseline=failed)
            yield ev.RoundStarted(problem=name, round=0, parents=())
            if number:
                yield from self._kernel(0, name, None)
        yield ev.ProblemRefused(problem=text(), path=text(), reason=text())
        for number in range(1, len(self.texts) + 1):
            yield from self._kernel(number, "softmax", f"v{number - 1}" if number > 1 and number % 3 else None)
        why = tuple(Selected(f"v{number}", text()) for number in range(1, len(self.texts) + 1))
        yield ev.RoundFinished(problem="softmax", round=0, selected=why[::2], dropped=why[1::2])
        yield ev.ProblemFinished(problem="softmax", reason=text())
        yield ev.CommandHandled(command=9, ok=True, message=text())
        yield ev.CommandHandled(command=8, ok=False, message=text())
        for one in self.texts:
            yield ev.LogLine(level="error", text=one)
        if ended:
            yield ev.EngineStopped(reason="error", message=text())

    def _kernel(self, number: int, problem: str, parent: str | None) -> Iterator[AnyEvent]:
        text = self.text
        mine = self.texts[number - 1] if number else text()
        start = ((number - 1) * self.per_page) % len(self.texts)
        page = [mine] if self.large else self.texts[start : start + self.per_page]
        yield ev.IdeaProposed(
            idea=f"i{number}", problem=problem, round=0, parent=parent, category=text(), text=mine, proposer=text(),
            data={text(): [] if self.large else page},
        )  # fmt: skip
        if number % 50 == 7:
            yield ev.IdeaWaiting(idea=f"i{number}", reason=mine)
            return
        site = CallSite(problem, 0, "kernel", f"i{number}")
        yield from self._call(number, site, mine)
        yield ev.VariantWritten(
            variant=f"v{number}", idea=f"i{number}", problem=problem, round=0, parent=parent, note=mine,
            language="py" if number % 7 == 0 else "cu", source=self._store(number, page), proposer=text(),
            data={text(): text(), "all": [] if self.large else page, "call": call_name(site)},
        )  # fmt: skip
        if number % 50 == 11:
            yield ev.VariantStage(variant=f"v{number}", stage="building")
            return
        correct = number % 2 == 0
        yield ev.VerdictGiven(
            variant=f"v{number}",
            verdict=Verdict(
                status="correct" if correct else ("build_error", "wrong", "cheating", "crashed")[number // 2 % 4],
                reason=mine, pattern=None if correct else mine, device=text(), sandbox=text(),
                flags=tuple(text() for _ in range(5)),
                speedup=1 + number / 1000 if correct else None, kernel=_timing(2.0) if correct else None,
                reference=_timing(4.0), checks=tuple(CheckResult(text(), correct, one) for one in page),
                build=BuildReport(correct, 1.0, text(), log="\n".join(page), registers=9, spill_bytes=4),
                output_tail=text() if self.large else "\n".join(page), stage_s={text(): 1.0},
            ),
        )  # fmt: skip
        if number % 50 == 20:
            sizes = AtSizes(mine, {mine: 3}, mine, "wrong", mine)
            yield ev.SizesChecked(problem=problem, variant=f"v{number}", results=(sizes,), note=mine)

    def _call(self, number: int, site: CallSite, mine: str) -> Iterator[AnyEvent]:
        """Yield the model call for a kernel. Each call fails once, then succeeds. One in ten calls stays in flight."""
        text, call = self.text, f"c{number}"
        prompt, reply = (self._store(number, [mine], kind) for kind in ("a", "b"))
        for attempt in (1, 2):
            yield ev.ModelCallStarted(
                call=call, attempt=attempt, provider=text(), model=text(), site=site, prompt=prompt, tokens=9,
                dollars=None,
            )  # fmt: skip
            if number % 10 == 3:
                return
            if attempt == 1:
                yield ev.ModelCallFailed(
                    call=call, attempt=1, failure="server", message=mine, wait_s=0.1, seconds=1.0, usage=None,
                    dollars=None,
                )  # fmt: skip
        yield ev.ModelReplied(
            call=call, attempt=2, answered=text(), prompt=prompt, reply=reply, finish="length", seconds=1.0,
            usage=Usage(input=9, output=9), dollars=0.01, tier=text(),
        )  # fmt: skip

    def _store(self, number: int, page: Sequence[str], kind: str = "c") -> str:
        digest = f"{kind}{number:063x}"
        broken = b"\xff\xfe\xc3(\xed\xa0\x80\xf8\x88"
        self.blobs[digest] = "\n".join(page).encode("utf-8", "surrogatepass") + broken
        return digest


def write_hostile_session(root: Path, name: str, texts: Sequence[str], *, ended: bool = False) -> SessionPaths:
    """Write a session that contains ``texts``. The directory's name, ``name``, may be hostile too.

    ``texts`` must not contain lone surrogates, since JSON has none.
    """
    made = create_session(root, "made", "# hostile\n", name, 1)
    paths = SessionPaths.at(made.directory.rename(root / name))
    search = HostileSearch(texts)
    events = list(search.events(ended=ended))
    throttled = DeviceSample(device="GPU-1", kind="cuda", utilization=9, memory_used=1, throttle=tuple(texts[:3]))
    with sqlite3.connect(paths.database) as db:
        (start,) = db.execute("SELECT time FROM event").fetchone()
        db.executemany(
            "INSERT INTO event (time, kind, json) VALUES (?, ?, ?)",
            ((start + place / 1000, kind_of(event), encode(event).decode()) for place, event in enumerate(events)),
        )
        blobs = ((digest, zlib.compress(raw, 1), start) for digest, raw in search.blobs.items())
        db.executemany("INSERT INTO blob VALUES (?, ?, ?)", blobs)
        samples = [throttled, *reading(DeviceFact("cpu", "cpu", "", "", 1, 1), 1)]
        db.execute("INSERT INTO sample (time, json) VALUES (?, ?)", (start, encode_samples(samples)))
    db.close()
    partials = Partials(paths.directory)
    flying = [event.site for event in events if isinstance(event, ev.ModelCallStarted) and event.call.endswith("3")]
    for number, site in enumerate(flying):
        with contextlib.suppress(OSError, ValueError), contextlib.ExitStack() as stack:
            stack.enter_context(partials.of(site))(texts[number % len(texts)])
            stack.pop_all()  # Keep the file, as if the engine had crashed.
    return paths


def _spec(name: str, path: str) -> ProblemSpec:
    tensors = (TensorSpec("x", "input", "float32", (64, 64)), TensorSpec("out", "output", "float32", (64, 64)))
    return ProblemSpec(id=name, name=name, path=path, source="", tensors=tensors, sol_bytes=1 << 14)


def _timing(ms: float) -> Timing:
    return Timing(ms, ms, ms, 9)
