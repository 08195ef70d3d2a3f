"""Tracking with MLflow's real server: the same figures as ``show --json``, one run per session, nothing lost."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from benchmarks.kills import Chain
from engine.config.schema import ConfigError, parse_config
from engine.session.records.events import Recorded, VerdictGiven
from engine.session.store import SessionPaths, SessionReader, engine_liveness
from engine.tracking.launch import start_sender
from engine.tracking.measurements import Measurements, parameters_of
from engine.tracking.outbox import load_outbox
from tests.commandline import KernelTui
from tests.patience import PATIENCE_S

BY_HAND = Path(__file__).parents[3] / "sessions" / "by-hand"


@contextmanager
def server(directory: Path, port: int) -> Iterator[str]:
    """Run MLflow's tracking server on ``port`` and yield its address."""
    command = [sys.executable, "-m", "mlflow", "server", "--port", str(port), "--workers", "1"]
    command += [
        "--backend-store-uri",
        f"sqlite:///{directory}/mlflow.db",
        "--artifacts-destination",
        f"{directory}/files",
    ]
    environment = os.environ | {"MLFLOW_DISABLE_TELEMETRY": "true", "GIT_PYTHON_REFRESH": "quiet"}
    with (directory / "server.log").open("wb") as log:
        process = subprocess.Popen(
            command, cwd=directory, stdout=log, stderr=log, env=environment, start_new_session=True
        )
    address = f"http://127.0.0.1:{port}"
    try:
        wait_until(lambda: _answers(f"{address}/health"), "the server", directory / "server.log")
        yield address
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _answers(address: str) -> bool:
    try:
        with urllib.request.urlopen(address, timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def wait_until(met: Callable[[], bool], what: str, log: Path) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not met():
        assert time.monotonic() < deadline, f"{what}: {log.read_text() if log.exists() else 'no log'}"
        time.sleep(0.1)


def is_locked(path: Path) -> bool:
    with path.open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return True
    return False


def ask(address: str, path: str, **body: Any) -> Any:
    """Ask the server through its REST API, which owes nothing to the client that sent the metrics."""
    data = json.dumps(body).encode()
    request = urllib.request.Request(f"{address}/api/2.0/mlflow/{path}", data, {"Content-Type": "application/json"})
    if not body:
        request = urllib.request.Request(f"{address}/api/2.0/mlflow/{path}")
    with urllib.request.urlopen(request, timeout=20) as answer:
        return json.load(answer)


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def test_a_killed_and_resumed_search_is_one_run_without_gaps(tmp_path: Path) -> None:
    """The server cannot be reached until the first engine is dead, so its metrics come later."""
    port = free_port()
    tables = f'\n[tracking]\nmlflow = "http://127.0.0.1:{port}"\nexperiment = "kills"\n'
    with Chain(tmp_path, rounds=1, tables=tables) as chain:
        assert chain.wait_for(lambda events: sum(isinstance(one.event, VerdictGiven) for one in events) >= 2)
        os.kill(chain.engine.pid, signal.SIGKILL)
        with server(tmp_path, port) as address:
            wait_until(lambda: not engine_liveness(chain.paths).running, "the engine's end", chain.paths.log)
            chain.resume()
            assert not chain.wait_for(lambda events: False), "the search ends"
            log = chain.paths.directory / "tracking.log"
            # The killed engine's sender may log its end before the next sender starts. They hold the lock in turn.
            wait_until(lambda: not is_locked(chain.paths.directory / "tracking.lock"), "the senders' end", log)
            assert "the tracker has all metrics" in log.read_text()
            compare(address, chain, KernelTui(tmp_path))


def compare(address: str, chain: Chain, kernel_tui: KernelTui) -> None:
    """Compare the server's run with what ``show --json`` prints and with the session's events."""
    experiment = ask(address, "experiments/get-by-name?experiment_name=kills")["experiment"]["experiment_id"]
    runs = ask(address, "runs/search", experiment_ids=[experiment])["runs"]
    assert len(runs) == 1, "one run for both engines"
    run = runs[0]
    assert run["info"]["status"] == "FINISHED" and run["info"]["run_name"] == chain.paths.name
    shown = kernel_tui.json("show", str(chain.paths.directory))
    last = {one["key"]: one["value"] for one in run["data"]["metrics"]}
    (problem,) = shown["problems"]
    name = problem["problem"]
    assert last[f"{name}/best_speedup"] == problem["speedup"] and last[f"{name}/best_ms"] == problem["best_ms"]
    assert (last["verdicts"], last["correct"]) == (problem["verdicts"], problem["correct"])
    assert abs(last["search_seconds"] - shown["seconds"]) < 0.01
    assert (last["dollars"], last["tokens"]) == (0, 0)
    events: list[Recorded] = chain.read()
    given = [one for one in events if isinstance(one.event, VerdictGiven)]
    run_id = run["info"]["run_id"]
    history = ask(address, f"metrics/get-history?run_id={run_id}&metric_key={name}/correct&max_results=1000")["metrics"]
    assert [(one["step"], one["timestamp"], one["value"]) for one in history] == [
        (step, int(one.time * 1000), float(one.event.verdict.correct))  # type: ignore[union-attr]
        for step, one in enumerate(given, 1)
    ], "each verdict once, without gaps"
    parameters = {one["key"]: one["value"] for one in run["data"]["params"]}
    assert parameters["search.rounds"] == "1" and parameters["models.1.provider"] == "playbook"
    best = next((chain.paths.directory / "best").iterdir()).read_text()
    artifact = urllib.request.urlopen(f"{address}/get-artifact?run_uuid={run_id}&path=best/{name}.cpp", timeout=20)
    with artifact:
        assert artifact.read().decode() == best


def test_metrics_of_a_recorded_session_end_at_what_show_prints(tmp_path: Path) -> None:
    measured, last = Measurements(), {}
    with SessionReader(SessionPaths.at(BY_HAND)) as reader:
        for recorded in reader.read():
            last |= {point.name: point.value for point in measured.take(recorded)}
        parameters = parameters_of(reader.text(measured.state.config))
    shown = KernelTui(tmp_path).json("show", str(BY_HAND))
    for problem in shown["problems"]:
        assert last[f"{problem['problem']}/best_speedup"] == problem["speedup"]
        assert last[f"{problem['problem']}/eager_ms"] > 0
    assert last["verdicts"] == sum(problem["verdicts"] for problem in shown["problems"])
    assert last["correct"] == sum(problem["correct"] for problem in shown["problems"])
    assert parameters["search.rounds"] and all(len(value) <= 500 for value in parameters.values())


def test_another_tracker_receives_everything_from_the_beginning(tmp_path: Path) -> None:
    paths = SessionPaths.at(tmp_path)
    (tmp_path / "tracking.json").write_text('{"uri": "http://a", "run": "r1", "seq": 7, "best": {"p": "v1"}}')
    assert load_outbox(paths, "http://a").seq == 7
    assert (load_outbox(paths, "http://b").run, load_outbox(paths, "http://b").seq) == ("", 0)


def test_the_sender_inherits_no_api_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"MLFLOW_TRACKING_TOKEN": "a", "https_proxy": "b", "SSL_CERT_FILE": "c", "LC_ALL": "C.UTF-8"}
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    for name in ("OPENAI_API_KEY", "MY_KEY", "PATH_KEY"):
        monkeypatch.setenv(name, "sk-secret")
    process = start_sender(SessionPaths.at(tmp_path))
    assert process is not None
    try:
        environ = Path(f"/proc/{process.pid}/environ")  # empty until the kernel has set up the new program
        wait_until(lambda: environ.read_bytes() != b"", "the sender's environment", tmp_path / "tracking.log")
        read = environ.read_text()
    finally:
        process.kill()
        process.wait()
    found = dict(line.split("=", 1) for line in read.split("\0") if line)
    assert given.items() <= found.items() and {"PATH", "PYTHONPATH"} <= found.keys()
    assert "sk-secret" not in read


def test_a_password_does_not_belong_in_the_config() -> None:
    text = 'problems = ["builtin:quickstart/softmax"]\n[tracking]\nmlflow = "http://me:secret@host"\n'
    try:
        parse_config(text, "config.toml")
    except ConfigError as error:
        assert "MLFLOW_TRACKING_PASSWORD" in str(error) and "secret" not in str(error)
    else:
        raise AssertionError("it was accepted")
