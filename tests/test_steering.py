"""A user steers a real search with the real command while kernels are being judged."""

from __future__ import annotations

import asyncio
import itertools
import re
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from engine.exit_codes import ExitCode
from engine.problem.catalog import inspect_files, resolve
from engine.problem.spec import ProblemSpec
from engine.session.records.events import AnyEvent, ProblemAdded, RoundFinished, RoundStarted, RunoffFinished
from engine.session.records.requests import Pause, Resume
from engine.session.state.session_state import SessionState, fold
from engine.session.store import (
    EngineLock,
    EventWriter,
    SessionPaths,
    SessionReader,
    create_session,
    engine_liveness,
    send_request,
)
from tests.commandline import KernelTui
from tests.engine.proposers import canned
from tests.patience import PATIENCE_S
from tui.cli.main import main
from tui.cli.shared.common import sessions_option
from tui.cli.shared.problem_option import PROBLEM
from tui.cli.steering import send

CONFIG = """\
name = "demo"
problems = ["softmax.py", "sum.py"]
[search]
rounds = 500
ideas = 2
variants = 1
runoff = 2
[budget]
minutes = 120
[evaluation]
device = "cpu"
trials = 3
max_pairs = 8
torch_compile = false
other_sizes = false
"""

KERNEL = """\
#include <math.h>
// By hand, number {number}.
extern "C" int launch(const float* x, float* out, void* workspace) {{
    for (long long r = 0; r < x_dim0; ++r) {{
        const float* a = x + r * x_dim1;
        float* b = out + r * x_dim1;
        float top = a[0], sum = 0.0f;
        for (long long c = 1; c < x_dim1; ++c) top = fmaxf(top, a[c]);
        for (long long c = 0; c < x_dim1; ++c) sum += b[c] = expf(a[c] - top);
        for (long long c = 0; c < x_dim1; ++c) b[c] /= sum;
    }}
    return 0;
}}
"""


class LiveSearch:
    """A running search, steered from a shell."""

    def __init__(self, kernel_tui: KernelTui) -> None:
        self.kernel_tui = kernel_tui
        self.paths = SessionPaths.at(kernel_tui.directory / "sessions" / "demo")
        self._kernels = 0

    def tell(self, command: str, *arguments: str, code: ExitCode = ExitCode.OK) -> dict[str, object]:
        """Send a request and return its answer as JSON. ``code``: expected exit code."""
        result = self.kernel_tui(command, "demo", *arguments, "--json")
        assert result.returncode == code, result.stdout + result.stderr
        answer: dict[str, object] = self.kernel_tui.decode(result.stdout)
        return answer

    def ask(self, command: str, *arguments: str) -> dict[str, object]:
        """Send a request that may be rejected, and return its answer as JSON."""
        answer: dict[str, object] = self.kernel_tui.decode(
            self.kernel_tui(command, "demo", *arguments, "--json").stdout
        )
        return answer

    def events(self) -> list[AnyEvent]:
        with SessionReader(self.paths) as reader:
            return [recorded.event for recorded in reader.read()]

    def runoffs(self) -> int:
        return sum(isinstance(event, RunoffFinished) for event in self.events())

    def state(self) -> SessionState:
        with SessionReader(self.paths) as reader:
            return fold(reader.read())

    def pause(self) -> None:
        send_request(self.paths, Pause(), "test")
        self.until(lambda state: state.paused)

    def until(self, holds: Callable[[SessionState], bool]) -> SessionState:
        """Return the first state in which ``holds`` is true."""
        deadline = time.monotonic() + PATIENCE_S
        while not holds(state := self.state()):
            assert time.monotonic() < deadline, "what was waited for did not happen"
            assert engine_liveness(self.paths).running, "the engine ended"
            time.sleep(0.05)
        return state

    def new_kernel(self) -> str:
        """Return a file with a correct softmax that was not seeded before."""
        self._kernels += 1
        path = self.kernel_tui.directory / f"own_{self._kernels}.cpp"
        path.write_text(KERNEL.format(number=self._kernels))
        return str(path)


@pytest.fixture(scope="module")
def waiting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveSearch]:
    """Pause the search, for tests that must not see new verdicts."""
    directory: Path = tmp_path_factory.mktemp("steering")
    (directory / "softmax.py").write_text(canned.PROBLEM)
    chain = canned.PROBLEM.replace("torch.softmax(x, dim=1)", "torch.tanh(x * 2.0 + 1.0) * x")
    (directory / "sum.py").write_text(chain)
    (directory / "config.toml").write_text(CONFIG)
    kernel_tui = KernelTui(directory)
    started = kernel_tui("run", "config.toml", "--detach")
    assert started.returncode == ExitCode.OK, started.stderr
    live = LiveSearch(kernel_tui)
    try:
        live.until(lambda state: state.verdicts >= 4)
        live.pause()
        yield live
    finally:
        kernel_tui.kill_engines()


@pytest.fixture
def search(waiting: LiveSearch) -> Iterator[LiveSearch]:
    """Unpause the search, and pause it again afterwards to leave the processor to other tests."""
    send_request(waiting.paths, Resume(), "test")
    waiting.until(lambda state: not state.paused)
    yield waiting
    if engine_liveness(waiting.paths).running:
        waiting.pause()


def correct_ones(state: SessionState, problem: str = "softmax") -> list[str]:
    return [variant.id for variant in state.leaders(problem)]


def test_while_paused_nothing_new_is_judged_and_what_runs_finishes(search: LiveSearch) -> None:
    assert search.tell("pause")["ok"]
    state = search.until(lambda state: all(one.stage == "queued" for one in state.in_flight()))
    time.sleep(1.0)
    assert search.state().verdicts == state.verdicts
    assert "already" in str(search.tell("pause")["message"])
    assert "verdicts; paused, engine pid" in search.kernel_tui("show", "demo").stdout
    assert search.kernel_tui("sessions", "demo").stdout.split("demo")[1].split()[0].rstrip(",") == "paused"
    search.tell("unpause")
    search.until(lambda later: later.verdicts > state.verdicts)


def test_a_pruned_branch_is_cancelled_and_never_a_parent_until_restored(search: LiveSearch) -> None:
    state = search.until(lambda state: any(state.ideas[one.idea].parent for one in state.in_flight()))
    idea = next(one.idea for one in state.in_flight() if state.ideas[one.idea].parent)
    answer = search.tell("prune", idea)
    assert answer["node"] == idea
    assert re.match(rf"pruned {idea} and \d+ kernels? below it", str(answer["message"])), answer
    branch = search.state().branch(idea)
    state = search.until(lambda state: not any(one.id in branch for one in state.in_flight()))
    assert all(state.variants[name].verdict is not None for name in state.ideas[idea].variants)
    rounds = len([event for event in search.events() if isinstance(event, RoundStarted)])
    search.until(lambda state: sum(len(one.rounds) for one in state.problems.values()) >= rounds + 2)
    pruned = search.state().branch(idea)
    later = [event for event in search.events() if isinstance(event, RoundStarted)][rounds:]
    assert not pruned & {parent.variant for event in later for parent in event.parents}
    search.tell("restore", idea)
    restored = search.until(
        lambda state: (
            not any(
                one.verdict is None or one.verdict.status == "cancelled"
                for one in (state.variants[name] for name in state.ideas[idea].variants)
            )
        )
    )
    assert not restored.is_pruned(idea)


def test_a_pruned_best_is_not_the_best_and_its_file_follows(search: LiveSearch) -> None:
    search.until(lambda state: len(correct_ones(state)) >= 2)
    search.tell("pause")
    search.until(lambda state: all(one.stage == "queued" for one in state.in_flight()))
    try:
        runoffs = -1
        while runoffs != (runoffs := search.runoffs()):  # one in flight may become the best meanwhile
            best = search.state().problems["softmax"].best
            assert best is not None
            search.tell("prune", best)
            after = search.state().problems["softmax"].best
            assert after != best
            search.tell("restore", best)
            again = search.state().problems["softmax"].best
        assert again == best
    finally:
        search.tell("continue")
    source = search.kernel_tui.json("show", "demo", best)["source"]
    deadline = time.monotonic() + PATIENCE_S
    while search.state().problems["softmax"].best == best and time.monotonic() < deadline:
        if search.paths.best("softmax", ".cpp").read_text() == source:
            break
        time.sleep(0.1)
    else:
        assert search.state().problems["softmax"].best != best, "the file did not follow the best kernel"


def test_a_pinned_kernel_is_selected_however_slow(search: LiveSearch) -> None:
    slowest = correct_ones(search.state())[-1]
    search.tell("pin", slowest)
    branch_fastest = next(one for one in correct_ones(search.state()) if slowest in search.state().lineage(one))
    before = len(search.state().problems["softmax"].rounds)
    search.until(
        lambda state: (
            any(r.finished_at is not None for r in state.problems["softmax"].rounds[before:])
            or state.problems["softmax"].finished is not None
        )
    )
    finished = [event for event in search.events() if isinstance(event, RoundFinished) and event.problem == "softmax"]
    selected_because = {one.variant: one.why for one in finished[-1].selected}
    pinned = [variant for variant, why in selected_because.items() if "pinned by hand" in why]
    assert pinned
    assert any(slowest in search.state().lineage(one) for one in [*pinned, branch_fastest])
    search.tell("unpin", slowest)


def test_a_kernel_seeded_by_hand_is_judged_and_belongs_to_an_idea_of_its_own(search: LiveSearch) -> None:
    parent = correct_ones(search.state())[0]
    node = search.tell(
        "seed-kernel", search.new_kernel(), "--problem", "softmax", "--parent", parent, "--text", "the plain formula"
    )["node"]
    state = search.until(lambda state: state.variants[str(node)].verdict is not None)
    variant = state.variants[str(node)]
    assert variant.correct
    assert (variant.proposer, variant.parent) == ("hand", parent)
    assert state.ideas[variant.idea].text == "the plain formula"


def test_the_same_kernel_twice_is_refused_with_the_name_it_has(waiting: LiveSearch) -> None:
    kernel = waiting.new_kernel()
    node = waiting.tell("seed-kernel", kernel, "--problem", "softmax")["node"]
    as_configured = "softmax.py"
    answer = waiting.tell("seed-kernel", kernel, "--problem", as_configured, code=ExitCode.FAILURE)
    assert f"{node} already has this source" in str(answer["message"]) and answer["node"] == node
    shutil.copy(kernel, copy := Path(kernel).with_name("copy.cpp"))
    with copy.open("a") as file:
        file.write("\n\n")
    answer = waiting.tell("seed-kernel", str(copy), "--problem", "softmax", code=ExitCode.FAILURE)
    assert f"{node} already has this source" in str(answer["message"]), "blank lines at the end"


def test_a_corrected_file_belongs_to_the_idea_of_its_first_version(waiting: LiveSearch) -> None:
    first, other, named = waiting.new_kernel(), waiting.new_kernel(), waiting.new_kernel()
    seed = ("seed-kernel", first, "--problem", "softmax")
    nodes = [waiting.tell(*seed)["node"]]
    Path(first).write_text(Path(other).read_text() + "// corrected\n")
    nodes.append(waiting.tell(*seed)["node"])
    nodes.append(waiting.tell("seed-kernel", other, "--problem", "softmax")["node"])
    Path(first).write_text(Path(named).read_text())
    nodes.append(waiting.tell(*seed, "--text", "the plain formula")["node"])
    state = waiting.state()
    ideas = [state.variants[str(node)].idea for node in nodes]
    assert ideas[0] == ideas[1] and len(set(ideas)) == 3, ideas
    assert [state.ideas[one].text for one in ideas] == [
        *["seeded from " + Path(first).name] * 2,
        "seeded from " + Path(other).name,
        "the plain formula",
    ]


def test_problems_are_known_by_what_the_config_calls_them(tmp_path: Path) -> None:
    paths = create_session(tmp_path / "sessions", "demo", "", "c.toml", 0)
    (spec,) = asyncio.run(inspect_files(resolve(["builtin:quickstart/softmax"], tmp_path)))
    assert isinstance(spec, ProblemSpec)
    writer = EventWriter(paths)
    writer.append(ProblemAdded(problem=spec, language="cpp", header=""))
    writer.close()
    for name, words in (
        ("softmax", "no engine is running"),
        ("builtin:quickstart/softmax", "no engine is running"),
        ("softmax.py", "no engine is running"),
        ("../quickstart/softmax.py", "no engine is running"),
        ("other/softmax.py", "this session has no problem other/softmax.py; did you mean softmax? It has softmax"),
        ("builtin:quickstart/gelu", "no problem builtin:quickstart/gelu; it has softmax"),
        ("builtin:quickstart/softmx", "no problem builtin:quickstart/softmx"),
    ):
        assert words in KernelTui(tmp_path)("seed-idea", "demo", "--problem", name, "faster").stderr
    assert "no engine is running" in KernelTui(tmp_path)("seed-idea", "demo", "faster").stderr, "the only problem"
    writer = EventWriter(paths)
    writer.append(ProblemAdded(problem=replace(spec, id="gelu"), language="cpp", header=""))
    writer.close()
    (tmp_path / "k.cpp").write_text("// a kernel\n")
    paths.config.write_text('problems = ["builtin:quickstart/softmax"]\n[[models]]\nprovider = "playbook"\n')
    for command, words in (
        (("seed-idea", "demo", "faster"), "demo has 2 problems; add one of these to the command: --problem softmax, "),
        (("seed-kernel", "demo", "k.cpp"), "--problem softmax, --problem gelu"),
        (("eval", "k.cpp"), "The problems of the newest session, demo: --problem builtin:quickstart/softmax"),
    ):
        ended = KernelTui(tmp_path)(*command)
        assert words in ended.stderr and ended.returncode == ExitCode.USAGE, ended.stderr


def test_a_missing_problem_is_named_from_the_sessions_of_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    paths = create_session(tmp_path / "elsewhere", "night", "", "c.toml", 0)
    paths.config.write_text('problems = ["builtin:quickstart/gelu"]\n[[models]]\nprovider = "playbook"\n')
    command = sessions_option(PROBLEM(click.Command("judge", callback=lambda **given: None)))
    said = CliRunner().invoke(command, ["--sessions", "elsewhere"]).output
    assert "The problems of the newest session, night: --problem builtin:quickstart/gelu" in said


def test_a_command_that_nobody_answers_is_said_to_stay_pending(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = create_session(tmp_path, "demo", "", "c.toml", 0)
    monkeypatch.setattr(send, "ANSWER_S", 0.2)
    lock = EngineLock(paths)
    with pytest.raises(SystemExit) as ending:
        main(["pause", str(paths.directory)])
    lock.release()
    assert ending.value.code == ExitCode.FAILURE
    said = capsys.readouterr().err
    assert "request 1" in said and "0.2 s" in said
    assert "stays pending" in said


def test_what_is_seeded_while_nothing_is_begun_says_what_it_waits_for(waiting: LiveSearch) -> None:
    answer = waiting.tell("seed-kernel", waiting.new_kernel(), "--problem", "softmax")
    assert str(answer["message"]).endswith(" after you unpause the search")


def test_an_idea_in_prose_waits_for_an_author_when_nobody_reads_prose(waiting: LiveSearch) -> None:
    node = str(waiting.tell("seed-idea", "use a lookup table", "--problem", "softmax")["node"])
    assert waiting.state().ideas[node].waiting
    assert waiting.state().ideas[node].variants == []
    made = waiting.tell("seed-kernel", waiting.new_kernel(), "--problem", "softmax", "--idea", str(node))
    state = waiting.state()
    assert state.variants[str(made["node"])].idea == node
    assert state.ideas[str(node)].waiting is None, "it has its author"
    waiting.tell("seed-kernel", waiting.new_kernel(), "--problem", "sum", "--idea", str(node), code=ExitCode.USAGE)


def test_a_transformation_of_the_catalogue_becomes_kernels(search: LiveSearch) -> None:
    answer = search.tell("seed-idea", "--transform", "no such one", "--problem", "softmax", code=ExitCode.USAGE)
    names = str(answer["message"]).partition("available: ")[2].split(", ")
    answer = search.tell("seed-idea", "--transform", names[0][:-1], "--problem", "softmax", code=ExitCode.USAGE)
    assert f"did you mean {names[0]}? Available: " in str(answer["message"])
    nodes: list[str] = []
    refused: list[str] = []
    state = search.state()
    by_the_playbook = [one for one in correct_ones(state) if state.variants[one].proposer == "playbook"]
    for parent, name in itertools.product(by_the_playbook, names):
        answer = search.ask("seed-idea", "--transform", name, "--problem", "softmax", "--parent", parent)
        if not answer["ok"]:
            refused.append(str(answer["message"]))
            continue
        nodes.append(str(answer["node"]))
        if any(search.state().ideas[node].variants for node in nodes) or len(nodes) == len(names):
            break
    assert nodes, refused

    def has_kernels(state: SessionState) -> bool:
        return any(state.ideas[node].variants for node in nodes)

    state = search.until(lambda state: has_kernels(state) or all(state.ideas[node].waiting for node in nodes))
    # The progress of the search decides whether a transformation still gives a new kernel.
    assert has_kernels(state) or {state.ideas[node].waiting for node in nodes} == {
        "the playbook has no untried kernel for this idea"
    }


def test_a_transformation_that_a_kernel_has_already_is_refused_with_alternatives_if_any(search: LiveSearch) -> None:
    asked: set[tuple[str, str]] = set()
    refused: list[tuple[str, str, dict[str, object]]] = []

    def is_refused(state: SessionState) -> bool:
        for one in state.leaders("sum"):
            name = str(state.ideas[one.idea].data.get("move", ""))
            # Applied to other knobs of the same transformation, it may give a new kernel. Then ask for the next one.
            if one.parent is not None and name.isidentifier() and name != "tune" and (one.id, name) not in asked:
                asked.add((one.id, name))
                answer = search.ask("seed-idea", "--move", name, "--problem", "sum", "--parent", one.id)
                if " does not apply to " in str(answer["message"]):
                    refused.append((one.id, name, answer))
                    return True
        return False

    search.until(is_refused)
    kernel, name, answer = refused[0]
    said = str(answer["message"])
    assert said.startswith(f"{name} does not apply to {kernel}: it is already applied")
    assert not answer["ok"] and answer["node"] is None
    # The progress of the search decides whether an untried transformation is left.
    assert ", try " in said or said.endswith(f"playbook has no untried transformation for {kernel}")


def test_a_kernel_is_judged_again_when_asked(search: LiveSearch) -> None:
    name = correct_ones(search.state())[0]
    judged = search.state().variants[name].judged
    search.tell("retry", name)
    search.until(lambda state: state.variants[name].judged > judged and state.variants[name].stage is None)


def test_a_limit_of_each_problem_is_changed_as_that_of_the_search_is(waiting: LiveSearch) -> None:
    answer = waiting.tell("budget", "--per-problem", "--calls", "7", "--dollars", "2.5")
    assert answer["message"] == "the budget of each problem is now $2.5 and 7 calls"
    assert (waiting.state().shares[""].calls, waiting.state().calls) == (7, None)


@pytest.mark.parametrize(
    ("command", "arguments", "words"),
    [
        ("prune", ["v9999"], "no problem, idea or kernel v9999"),
        ("restore", ["softmax"], "not pruned"),
        ("unpin", ["softmax"], "not pinned"),
        ("retry", ["i1"], "no kernel i1"),
        ("seed-idea", ["--problem", "absent", "faster"], "no problem absent; it has softmax, sum"),
        ("budget", ["--rounds", "0"], ""),
        ("budget", ["--model", "m", "--rounds", "3"], ""),
        ("budget", ["--per-problem"], ""),
        ("budget", ["--model", "m", "--calls", "3"], "no model is called m; models with a budget: none"),
    ],
)
def test_what_makes_no_sense_is_refused_in_a_sentence(
    waiting: LiveSearch, command: str, arguments: list[str], words: str
) -> None:
    result = waiting.kernel_tui(command, "demo", *arguments)
    misnamed = not words or words.startswith("no ")
    assert result.returncode == (ExitCode.USAGE if misnamed else ExitCode.FAILURE)
    assert words in result.stderr
    assert result.stderr.startswith("Error: ") or not words, "as every other command says what went wrong"


def test_every_command_has_one_answer_in_the_session(waiting: LiveSearch) -> None:
    with SessionReader(waiting.paths) as reader:
        sent = [one.id for one in reader.commands()]
    assert sorted(waiting.state().handled) == sent


def test_stopping_after_the_round_leaves_no_round_open(search: LiveSearch) -> None:
    search.tell("stop", "--after-round")
    deadline = time.monotonic() + PATIENCE_S
    while engine_liveness(search.paths).running:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    state = search.state()
    assert state.engine is not None
    assert state.engine.stopped == "stopped"
    assert all(one.finished_at is not None for problem in state.problems.values() for one in problem.rounds)


def test_a_paused_search_whose_engine_was_killed_stays_paused_unless_nobody_watches_it(kernel_tui: KernelTui) -> None:
    (kernel_tui.directory / "softmax.py").write_text(canned.PROBLEM)
    (kernel_tui.directory / "config.toml").write_text(CONFIG.replace(', "sum.py"', ""))
    assert kernel_tui("run", "config.toml", "--detach").returncode == ExitCode.OK
    live = LiveSearch(kernel_tui)

    def kill_while_paused() -> None:
        live.pause()
        kernel_tui.kill_engines()
        while engine_liveness(live.paths).running:
            time.sleep(0.02)

    kill_while_paused()  # while the engine starts
    resumed = kernel_tui("resume", "demo", "--detach")
    assert "still paused, as before the interruption. Unpause: kernel-tui unpause " in resumed.stdout
    state = live.until(lambda state: state.starts == 2 and state.paused_at is not None)
    assert state.pause_kept
    assert kernel_tui("unpause", "demo").returncode == ExitCode.OK
    live.until(lambda state: not state.paused and not state.pause_kept)

    kill_while_paused()
    resumed = kernel_tui.start("resume", "demo", "--headless")
    while not engine_liveness(live.paths).running:
        time.sleep(0.02)
    live.until(lambda state: state.starts == 3 and not state.paused)
    resumed.kill()
    resumed.communicate()
