"""The report: one HTML file with the figures of ``show``, safe against hostile text, and small."""

from __future__ import annotations

import base64
import hashlib
import re
from html.parser import HTMLParser
from pathlib import Path

import msgspec
import pytest

from benchmarks.synthetic_session import GPU, Shape, write_session
from engine.exit_codes import ExitCode
from engine.session.records import events as ev
from engine.session.records.model_calls import CallSite
from engine.session.records.verdict import Timing
from engine.session.store import EventWriter, SessionPaths, SessionReader
from tests.commandline import KernelTui
from tui.cli.saved.session_results import session_results
from tui.report.calls import MAX_TEXT, behind_best, call_texts
from tui.report.page import report_page
from tui.view.over_time.history import Trajectory, fold_all

BY_HAND = Path(__file__).parents[2] / "sessions" / "by-hand"
RECORDED = sorted((Path(__file__).parents[1] / "recorded").glob("format-*"))
HOSTILE = "</pre></details><script>alert(1)</script><img src=x onerror=alert(1)> {{ 7 * 7 }} \u202eevil\x1b[31m"
VOID = {"meta", "col", "br", "img", "hr", "input", "link"}


class Page(HTMLParser):
    """A parsed report. Raises AssertionError if tags are not balanced."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self._words: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert not self._open
        self.text = " ".join("".join(self._words).split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag, (tag, self.getpos())

    def handle_data(self, data: str) -> None:
        self._words.append(data)

    def values(self, name: str) -> list[str]:
        return [attributes[name] or "" for _, attributes in self.tags if name in attributes]


def page_of(paths: SessionPaths) -> str:
    with SessionReader(paths) as reader:
        state, _, history = fold_all(reader.read())
        found = session_results(reader, state)
        return report_page(reader, state, history, found.results, found.ended, paths.name)


@pytest.fixture(scope="module")
def by_hand(tmp_path_factory: pytest.TempPathFactory) -> Page:
    """The report of the bundled session, as the command writes it."""
    directory = tmp_path_factory.mktemp("report")
    written = KernelTui(directory)("report", BY_HAND)
    assert written.returncode == ExitCode.OK, written.stderr
    assert "wrote by-hand.html" in written.stderr
    return check_harmless((directory / "by-hand.html").read_text())


def check_harmless(text: str) -> Page:
    """Check that nothing in a page runs or loads, and that every link leads to one place in the page."""
    page = Page(text)
    assert {tag for tag, _ in page.tags} & {
        "script",
        "img",
        "iframe",
        "object",
        "embed",
        "link",
        "form",
        "base",
    } == set()
    attributes = {name for _, found in page.tags for name in found}
    assert not [name for name in attributes if name.startswith("on") or name in ("src", "style", "srcset")]
    ids = page.values("id")
    assert len(ids) == len(set(ids))
    links = [*page.values("href"), *page.values("xlink:href")]
    links += [one[4:-1] for value in page.values("clip-path") for one in re.findall(r"url\([^)]*\)", value)]
    assert links and {one.removeprefix("#") for one in links if one.startswith("#")} <= set(ids)
    assert [one for one in links if not one.startswith("#")] == []
    (style,) = re.findall(r"(?s)<style>(.*?)</style>", text)
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    (policy,) = [found["content"] or "" for tag, found in page.tags if found.get("http-equiv") is not None]
    assert policy.startswith("default-src 'none';") and f"'sha256-{digest}'" in policy
    assert "url(" not in style and "@import" not in style
    return page


def test_figures_and_words_are_those_of_show(by_hand: Page, kernel_tui: KernelTui) -> None:
    text = by_hand.text
    shown = kernel_tui.json("show", BY_HAND)
    assert len(shown["problems"]) == 3
    for row in shown["problems"]:
        for figure in (f"{row['speedup']:.2f}x", f"{row['over_compile']:.2f}x", f"{row['sol_share'] * 100:.0f}"):
            assert figure in text, (row["problem"], figure)
        assert f"{row['speedup_low']:.2f}-{row['speedup_high']:.2f}" in text
        assert f"Best kernel: {row['best']}" in text
    assert "tolerance crfm (1e-2)" in text.lower() and "NVIDIA H200" in text
    printed = kernel_tui("show", BY_HAND, shown["problems"][0]["best"], "--full").stdout
    for label in ("kernel ", "speedup ", "% SOL ", "precision "):
        (line,) = [one for one in printed.splitlines() if one.startswith(label)]
        assert " ".join(line.removeprefix(label).split()) in text, line


def test_the_best_kernels_source_diff_and_prompt_are_whole(by_hand: Page) -> None:
    text = by_hand.text
    for file in (BY_HAND / "best").iterdir():
        assert " ".join(file.read_text().split()) in text, file.name
    with SessionReader(SessionPaths.at(BY_HAND)) as reader:
        state, _, _ = fold_all(reader.read())
        for call in behind_best(state):
            reply = state.spending.calls[call].reply
            assert reply is not None and " ".join(reader.text(reply).split()) in text


@pytest.mark.parametrize("directory", [BY_HAND, *RECORDED], ids=lambda directory: directory.name)
def test_each_trajectory_ends_at_the_best_kernel(directory: Path) -> None:
    with SessionReader(SessionPaths.at(directory)) as reader:
        state, _, history = fold_all(reader.read())
    for problem in state.problems.values():
        found = history.problems.get(problem.id, Trajectory())
        assert (found.bests[-1].variant if found.bests else None) == problem.best or problem.best is None
        assert len(found.judged) == sum(one.was_judged for one in state.variants_of(problem.id))
        for points in (found.bests, found.timed):
            places = [(one.seconds, one.verdicts) for one in points]
            assert places == sorted(places)


@pytest.mark.parametrize("directory", [RECORDED[0], RECORDED[-2]], ids=lambda directory: directory.name)
def test_sessions_of_earlier_versions_have_a_report(directory: Path) -> None:
    check_harmless(page_of(SessionPaths.at(directory)))


def test_a_thousand_kernels_fit_in_five_megabytes(tmp_path: Path) -> None:
    shape = Shape(variants=1000, problems=4, rounds=6, flying=0, device=GPU, attended=True)
    page = page_of(write_session(tmp_path, "large", shape, ended=True))
    assert len(page.encode()) + 1.1 * MAX_TEXT < 5_000_000, "the synthetic prompts and replies are tiny"
    found = check_harmless(page)
    assert f"v{1000}" in found.text and "tokens spent" not in found.text and "dollars spent" in found.text


def test_text_of_models_and_kernels_cannot_become_markup(tmp_path: Path) -> None:
    paths = write_session(tmp_path, "hostile", Shape(variants=12, problems=1, rounds=2, flying=0, attended=True))
    with SessionReader(paths) as reader:
        state, _, _ = fold_all(reader.read())
    problem, parent = next(iter(state.problems.values())), next(iter(state.variants.values()))
    verdict = next(one.verdict for one in state.variants.values() if one.speedup is not None)
    assert verdict is not None
    fast = msgspec.structs.replace(verdict, kernel=Timing(0.004, 0.004, 0.004, 9), speedup=999.0, speedup_low=998.0,
                                   speedup_high=1000.0, output_tail=HOSTILE, flags=(HOSTILE,))  # fmt: skip
    writer = EventWriter(paths)
    source = writer.put_blob(f"// {HOSTILE}\n{HOSTILE}\n")
    writer.append_all(
        [
            ev.IdeaProposed(idea="i99", problem=problem.id, round=1, parent=parent.id, category=HOSTILE, text=HOSTILE,
                            proposer=HOSTILE),
            ev.VariantWritten(variant="v99", idea="i99", problem=problem.id, round=1, parent=parent.id, language="cu",
                              source=source, proposer=HOSTILE, note=HOSTILE),
            ev.VerdictGiven(variant="v99", verdict=fast),
            ev.ProblemAdded(problem=msgspec.structs.replace(problem.spec, id=HOSTILE), language="cu", header=HOSTILE),
            ev.ModelCallStarted(call=HOSTILE, attempt=1, provider=HOSTILE, model=HOSTILE, prompt=source, tokens=1,
                                site=CallSite(HOSTILE, 0, "kernel", HOSTILE), dollars=None),
            ev.ModelReplied(call=HOSTILE, attempt=1, answered=HOSTILE, prompt=source, reply=source, finish="stop",
                            seconds=1.0, usage=None, dollars=None),
            ev.ProblemRefused(problem="refused", path=HOSTILE, reason=HOSTILE),
        ]
    )  # fmt: skip
    writer.flush(5)
    writer.close()
    text = page_of(paths)
    page = check_harmless(text)
    assert "Best kernel: v99" in page.text, "its source, diff, lineage and evidence are in the page"
    assert page.text.count("<script>alert(1)</script>") > 10, "escaped, but shown"
    assert "{{ 7 * 7 }}" in page.text
    assert not re.search("[\u202e\x1b]", text)


def test_a_new_best_keeps_the_speedup_of_its_time_after_another_verdict(tmp_path: Path) -> None:
    paths = write_session(tmp_path, "again", Shape(variants=12, problems=1, rounds=2, flying=0), ended=True)
    with SessionReader(paths) as reader:
        state, _, history = fold_all(reader.read())
    first = history.problems["softmax"].bests[0]
    verdict = state.variants[first.variant].verdict
    assert verdict is not None
    writer = EventWriter(paths)
    slower = msgspec.structs.replace(verdict, speedup=0.11, speedup_low=0.11, speedup_high=0.11)
    writer.append(ev.VerdictGiven(variant=first.variant, verdict=slower))
    writer.flush(5)
    writer.close()
    row = f'<td>{first.variant}</td><td class="n">{first.speedup:.2f}x</td><td class="keep">its verdict; judged again'
    assert f"{row}: 0.11x</td>" in page_of(paths)


def test_texts_beyond_the_limit_are_left_out_and_named(tmp_path: Path) -> None:
    shape = Shape(variants=60, problems=2, rounds=3, flying=0, attended=True)
    with SessionReader(write_session(tmp_path, "talkative", shape, ended=True)) as reader:
        state, _, _ = fold_all(reader.read())
        best = behind_best(state)
        whole = call_texts(state, reader.text)
        some = call_texts(state, reader.text, most=400)
    assert whole.left_out == 0 and 0 < some.left_out < len(state.spending.calls)
    assert sum(len(one.calls) for one in some.problems) == len(state.spending.calls)
    kept = {row.id for one in some.problems for row in one.calls if not row.left_out}
    assert kept and (kept <= best or best <= kept)


def test_a_session_without_verdicts_has_a_report(tmp_path: Path) -> None:
    text = page_of(write_session(tmp_path, "empty", Shape(variants=0, problems=1, rounds=1, flying=0)))
    assert "Searched 1 problem without finding a correct kernel" in check_harmless(text).text


def test_an_existing_file_is_replaced_only_by_force(kernel_tui: KernelTui) -> None:
    page = kernel_tui.directory / "by-hand.html"
    page.write_text("my own")
    refused = kernel_tui("report", BY_HAND)
    assert refused.returncode == ExitCode.USAGE
    assert "by-hand.html already exists" in refused.stderr and "--force" in refused.stderr
    assert page.read_text() == "my own"
    assert kernel_tui("report", BY_HAND, "--force").returncode == ExitCode.OK
    assert page.read_text().startswith("<!")


def test_without_matplotlib_the_command_says_what_to_install(kernel_tui: KernelTui, tmp_path: Path) -> None:
    (tmp_path / "without" / "matplotlib").mkdir(parents=True)
    (tmp_path / "without" / "matplotlib" / "__init__.py").write_text("raise ImportError('not installed')\n")
    ran = kernel_tui("report", BY_HAND, env={"PYTHONPATH": f"{tmp_path / 'without'}:{Path(__file__).parents[2]}"})
    assert ran.returncode == ExitCode.FAILURE
    assert "kernel-tui[report]" in ran.stderr and "Traceback" not in ran.stderr
    assert not (kernel_tui.directory / "by-hand.html").exists()
