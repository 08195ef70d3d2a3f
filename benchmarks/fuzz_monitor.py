"""Show hostile texts in every pane of the monitor. Print the number of texts shown, and all faults.

Usage: python benchmarks/fuzz_monitor.py [--texts 10000] [--seed 1] [--only drawn,terminal,giants]

drawn     puts each text into every field that a model, compiler, kernel, device or file system can fill, and draws
          every pane; no drawn line may contain a character that a terminal would interpret
terminal  opens the texts in a real pseudo-terminal, in sessions of 500 with a running engine, and pages through every
          pane; the terminal may receive no escape sequences but Textual's own
giants    shows lines of 10 MB, a million lines, and bytes that are not text, in a real pseudo-terminal
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from textual.strip import Strip

from benchmarks.hostile import GIANT, HostileSearch, faults_of, hostile, unsafe_in, write_hostile_session
from benchmarks.pseudo_terminal import Terminal
from engine.devices.sample import DeviceSample
from engine.session.records.events import CommandHandled, Recorded
from engine.session.records.requests import Command
from engine.session.state.session_state import SessionState
from engine.session.store import EngineLock, EventWriter, SessionPaths, SessionReader, SessionSummary
from tui.compare.kernels import compare_kernels
from tui.monitor.app import MonitorApp
from tui.monitor.panes.compare import head_line, table_lines
from tui.monitor.panes.detail.conversation import Conversation
from tui.monitor.panes.detail.diff import diff_lines
from tui.monitor.panes.detail.evidence import evidence_lines
from tui.monitor.panes.detail.kernel import kernel_lines
from tui.monitor.panes.detail.pane import subject_of
from tui.monitor.panes.detail.story import idea_lines, why_lines
from tui.monitor.panes.detail.text import folded
from tui.monitor.panes.devices import device_lines
from tui.monitor.panes.leaders import leader_lines
from tui.monitor.panes.log import log_lines
from tui.monitor.panes.scoreboard import scoreboard
from tui.monitor.panes.status.second_line import bests_line, notice_of
from tui.monitor.panes.status.status_line import status_line
from tui.monitor.panes.tree.rows import TreeRows, View
from tui.monitor.panes.tree.tree_lines import RowLines
from tui.monitor.screens.confirm import ConfirmScreen
from tui.monitor.screens.picker import entry
from tui.monitor.screens.spend import spend_lines
from tui.monitor.settings import Settings
from tui.monitor.steering.plans import Refused, plan_pin, plan_prune, plan_retry
from tui.monitor.terminal.farewell import parting_words
from tui.monitor.terminal.terminal import notification_sequence
from tui.text.sanitize import clean_lines, one_line
from tui.text.story import fold_with_story
from tui.view.model import Model, Pending
from tui.view.source import Limits, Link, Reading, Update
from tui.view.spend import spend_table

WIDTH = 90
PER_SESSION = 500
QUIET_S = 0.05
"""Seconds without output after which a screen counts as painted."""


class HostileSource:
    """An in-memory session that contains one text."""

    paths = SessionPaths(Path("no session"))
    read_only = False
    limits = Limits()

    def __init__(self, text: str) -> None:
        self.name = self.argument = self.source = text

    def open(self) -> Update:
        return Update(state=SessionState())

    def poll(self) -> Update:
        return Update()

    def close(self) -> None:
        return

    def now(self) -> float:
        return 100.0

    def text(self, digest: str) -> str:
        # Real sessions decode blobs in the same way.
        return self.source.encode("utf-8", "surrogatepass").decode(errors="replace")

    def send(self, command: Command) -> int:
        return 1


def model_of(text: str, seed: int) -> Model:
    """Return a model with ``text`` in every field that can contain foreign text."""
    rng = random.Random(seed)
    model = Model(HostileSource(text))
    json_text = text.encode("utf-8", "ignore").decode()  # events are JSON, which has no lone surrogates
    events = HostileSearch([json_text] * 8).events(ended=rng.random() < 0.5)
    state, story = fold_with_story(Recorded(seq, float(seq), event) for seq, event in enumerate(events, 1))
    kinds = (Link("live", 1), Link("stalled", 1, 9.0), Link("ended", 1, None, text))
    model.take(Update(state=state, story=story, link=rng.choice(kinds)))
    sample = DeviceSample(device="GPU-1", kind="cuda", utilization=5.0, memory_used=1, throttle=(text, text))
    model.take(Update(readings=[Reading(1.0, (sample,))]))
    model.trouble = text if rng.random() < 0.3 else None
    for node in ("v1", "i2"):
        model.pending[len(model.pending)] = Pending(1, Command(), node, text, 1.0)
    return model


def panes_of(app: MonitorApp, text: str, seed: int) -> Iterator[tuple[str, Iterable[Strip]]]:
    """Yield every pane with ``text`` in it, by name."""
    palette = app.monitor_screen.tree_view.palette
    model = model_of(text, seed)
    state = model.state
    artist = RowLines(model, palette, ascii_only=seed % 2 == 0)
    for name, mode in (("tree by round", "round"), ("tree by lineage", "lineage")):
        rows = TreeRows(state, View(mode=mode))  # type: ignore[arg-type]
        yield name, (artist.draw(row, WIDTH, marked=row.id == "v2") for row in rows.rows)
        rows.set_filter(one_line(text))
        yield f"{name}, filtered", (artist.draw(row, WIDTH) for row in rows.rows)
    yield "tree's title", [Strip.join([*_strips(artist.header([(f"Tree /{text}", True)], text, text, WIDTH))])]
    for language in ("cu", "py"):
        yield "kernel", kernel_lines(text, language, palette)  # type: ignore[arg-type]
    yield "diff", diff_lines(text, text[::-1], text, text, palette)
    for variant in list(state.variants.values())[:4]:
        yield "evidence and build log", folded(evidence_lines(model, variant, palette, WIDTH), WIDTH)
        yield "why", folded(why_lines(model, variant, palette, WIDTH), WIDTH)
    for idea in list(state.ideas.values())[:2]:
        yield "idea", folded(idea_lines(model, idea, palette, WIDTH), WIDTH)
    for row in TreeRows(state).rows[:12]:
        for whole in (False, True):
            talk = Conversation(model, whole=whole)
            subject = subject_of(model, row)
            talk.look(row, subject)
            yield "conversation", talk.lines(row, subject, palette, WIDTH)
    yield "spending", spend_lines(model, spend_table(model), palette, WIDTH, ascii_only=False)
    compared = compare_kernels(state, list(state.variants)[:3], "kernelbench")
    yield "kernels side by side", [head_line(compared, palette, WIDTH, ascii_only=False)]
    yield "kernels side by side", table_lines(compared, palette, WIDTH, ascii_only=False)
    yield "kernels side by side", _plain(*map(one_line, compared.words))
    for problem in state.problems.values():
        yield "leaders", leader_lines(model, problem, palette, ascii_only=False)
    yield "log", log_lines(model, palette)
    yield "status", [status_line(model, palette, WIDTH, ascii_only=False, held=True, follow=True)]
    notice = notice_of(model)
    yield "alarm", _strips([(notice.text if notice is not None else "", palette.alarm)])
    yield "status", [bests_line(model, palette, WIDTH)]
    yield "scoreboard", scoreboard(model, palette, WIDTH, ascii_only=False)
    yield "devices", device_lines(model, palette, WIDTH, ascii_only=False)
    app.say(text)
    yield "command answers", app.monitor_screen.key_bar.lines
    found = SessionSummary(name=text, directory=Path("x"), state="died", best={text: 2.0})
    for one in (found, SessionSummary(name="x", directory=Path("x"), state="unreadable", note=text)):
        for width in (WIDTH, 2 * WIDTH):
            yield "picker", _plain(*entry(one, width).plain.split("\n"))
    for node in (*state.problems, "i1", "v1", "v2"):
        for plan in (plan_prune, plan_pin, plan_retry):
            try:
                question = plan(state, node).question
            except Refused as refusal:
                app.say(str(refusal))
                yield "command answers", app.monitor_screen.key_bar.lines
                continue
            yield "dialogs", _plain(*(ConfirmScreen(lambda said=question: said).lines() if question else ()))
    sequence = notification_sequence(text)
    yield "notifications", _plain(sequence.removeprefix("\x1b]9;").removesuffix("\x07"))
    yield "words on leaving", _plain(*clean_lines(parting_words(model)))


def _strips(parts: Iterable[object]) -> list[Strip]:
    from tui.monitor.panes.lines import line

    return [line(*parts)]  # type: ignore[arg-type]


def _plain(*texts: str) -> list[Strip]:
    from rich.segment import Segment

    return [Strip([Segment(text)]) for text in texts]


def fault_of(strip: Strip) -> str | None:
    """Describe the first part of a line that a terminal would interpret. Return None if the line is safe."""
    for text, style, control in strip:
        if (found := unsafe_in(text)) is not None:
            return f"{found!r} in {text[:80]!r}"
        if control or (style is not None and (style.link or style.meta)):
            return f"a link or an action in {text[:80]!r}"
    return None


async def drawn(texts: list[str], faults: list[str]) -> Counter[str]:
    """Call the functions that draw each pane, in a running app."""
    shown: Counter[str] = Counter()
    app = MonitorApp(HostileSource("fuzz"), settings=Settings(notify="off"), ascii_only=False)
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.pause(0.2)
        for number, text in enumerate(texts):
            seen: set[str] = set()
            try:
                for pane, strips in panes_of(app, text, number):
                    seen.add(pane)
                    for strip in strips:
                        if (fault := fault_of(strip)) is not None:
                            faults.append(f"{pane}: {fault}")
                            break
            except Exception as error:
                faults.append(f"text {number} crashed after {sorted(seen)[-1:]}: {error!r}: {text[:200]!r}")
            shown.update(seen)
            if number % 50 == 0:
                await pilot.pause()
    return shown


class Visit:
    """Page through a session in a real terminal, with this process as its engine."""

    def __init__(self, directory: Path, name: str, texts: list[str], size: tuple[int, int]) -> None:
        self.paths = write_hostile_session(directory, name, texts)
        self.lock = EngineLock(self.paths)
        self.writer = EventWriter(self.paths)
        self.terminal = Terminal(
            ["attach", str(self.paths.directory)], directory / "settings", size=size, environment={"EDITOR": "true"}
        )
        self.terminal.record = bytearray()
        self.screens = 0
        self.texts = texts

    def press(self, *keys: str) -> None:
        for key in keys:
            self.terminal.type(KEYS.get(key, key))
            begun = time.monotonic()
            while self.terminal.read_for(QUIET_S, lambda _: True) is not None and time.monotonic() - begun < 1:
                pass
            self.screens += 1

    def answer(self, text: str) -> None:
        """Reject the newest request with ``text``."""
        with SessionReader(self.paths) as reader:
            newest = max((sent.id for sent in reader.commands()), default=0)
        self.writer.append(CommandHandled(command=newest, ok=False, message=text))
        self.writer.flush(5)

    def leave(self) -> list[str]:
        """Leave the monitor, and return all faults."""
        terminal = self.terminal
        alive = terminal.process.poll() is None
        terminal.close()
        self.writer.close()
        self.lock.release()
        assert terminal.record is not None
        painted = bytes(terminal.record)
        faults = faults_of(painted)
        if not alive or terminal.process.returncode != 0:
            faults.append(
                f"exited with status {terminal.process.returncode}: {painted[-3000:].decode(errors='replace')}"
            )
        return faults


KEYS = {"pgdn": "\x1b[6~", "pgup": "\x1b[5~", "esc": "\x1b", "end": "\x1b[F", "home": "\x1b[H", "f8": "\x1b[19~"}


def page_through(visit: Visit, kernels: int) -> None:
    """Open every pane of a session, with all detail tabs of ``kernels`` kernels."""
    visit.terminal.wait_for("softmax", 30)
    visit.press("*", "*")
    rows = 2 * len(visit.texts) // 30 + 2
    visit.press(*["pgdn"] * rows, "t", "g", *["pgdn"] * (rows // 2), "t", "g", *"ooooO", "j", "j")
    for _ in range(kernels):
        visit.press("1", "j", "j", "4")
        for _ in range(6):
            visit.press(*["pgdn"] * 3, "]")
        visit.press("v", "v", "pgdn", "v")
    visit.press("1", "g", "j", "j", "D", "D", "m", "j", "D", "D", "m", "c", "pgdn", "D", "]", "esc", "$", "pgdn", "esc")
    visit.press("5", *["pgup"] * 12, "+", *["pgup"] * 12, "esc", "6", *["pgdn"] * 4, "esc", "2", "3", "esc", "?", "esc")
    for text in visit.texts[:: max(1, len(visit.texts) // 10)]:
        visit.press("1", "b")
        visit.answer(text)
        visit.press("j")
        paste = "".join(character for character in text if character != "\x1b")[:300]
        visit.press("/", f"\x1b[200~{paste}\x1b[201~", "esc", "esc")
    for dialog in ("d", "i", "a", "A", "M"):
        text = visit.texts[ord(dialog) % len(visit.texts)]
        paste = text.replace("\x1b[201~", "")[:100_000]
        visit.press("1", dialog, f"\x1b[200~{paste}\x1b[201~", "\t", f"\x1b[200~{paste}\x1b[201~", "esc", "esc")
    visit.terminal.forget()
    visit.press("1", "B", "e")
    # These keys go to the editor while it owns the terminal.
    visit.terminal.read_for(10.0, lambda _: b"nothing is submitted" in visit.terminal.seen)


def terminal(texts: list[str], faults: list[str], kernels: int = 25) -> Counter[str]:
    shown: Counter[str] = Counter()
    for start in range(0, len(texts), PER_SESSION):
        mine = [text.encode("utf-8", "ignore").decode() for text in texts[start : start + PER_SESSION]]
        with tempfile.TemporaryDirectory(prefix="kernel-tui-fuzz-") as directory:
            name = mine[0].replace("/", "").replace("\0", "").encode()[:60].decode("utf-8", "ignore") or "x"
            size = ((120, 40), (200, 60), (80, 24))[start // PER_SESSION % 3]
            visit = Visit(Path(directory), f"s{name}", mine, size)
            try:
                page_through(visit, min(kernels, len(mine) // HostileSearch.per_page))
            except (OSError, TimeoutError) as error:
                faults.append(f"session {start // PER_SESSION}: {error}")
            faults += [f"session {start // PER_SESSION}: {fault}" for fault in visit.leave()]
            shown.update({"texts": len(mine), "screens": visit.screens, "bytes": visit.terminal.received})
        print(f"  {start + len(mine):,} texts, {shown['screens']:,} screens, {len(faults)} faults", flush=True)
    return shown


def giants(texts: list[str], faults: list[str]) -> Counter[str]:
    bomb = random.Random(5).randbytes(1 << 20).decode("latin-1")
    large = [
        "y" * GIANT,
        "漢" * (GIANT // 3),
        "\x1b[777m" * (GIANT // 7),
        "z\n" * 1_000_000,
        "\u0301" * 5_000_000,
        bomb,
    ]
    with tempfile.TemporaryDirectory(prefix="kernel-tui-fuzz-") as directory:
        visit = Visit(Path(directory), "giants", large, (120, 40))
        begun = time.monotonic()
        try:
            page_through(visit, 6)
        except (OSError, TimeoutError) as error:
            faults.append(f"giants: {error}")
        faults += [f"giants: {fault}" for fault in visit.leave()]
        return Counter({"texts": len(large), "screens": visit.screens, "seconds": int(time.monotonic() - begun)})


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--texts", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="drawn,terminal,giants")
    options = parser.parse_args()
    rng = random.Random(options.seed)
    texts = [hostile(rng, lone=True) for _ in range(options.texts)]
    parts: dict[str, Callable[[list[str], list[str]], Counter[str]]] = {
        "drawn": lambda texts, faults: asyncio.run(drawn(texts, faults)),
        "terminal": terminal,
        "giants": giants,
    }
    failed = 0
    for name in options.only.split(","):
        faults: list[str] = []
        begun = time.monotonic()
        shown = parts[name](texts, faults)
        print(f"{name}, {time.monotonic() - begun:.0f} s")
        for what, count in sorted(shown.items()):
            print(f"  {what:28} {count:>10,}")
        print(f"  {'faults':28} {len(faults):>10,}")
        for fault in faults[:20]:
            print(f"    {fault[:3000]}")
        failed += len(faults)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
