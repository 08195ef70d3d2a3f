"""A search on four hosts: one like the engine's, one with another compiler, one with another release of kernel-tui, and
one whose compiler builds nothing. Also hosts without a compiler, and slow ones.
"""

from __future__ import annotations

import cProfile
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from engine.cluster.comparability import AGAIN_S, Comparability
from engine.devices.fact import DeviceFact
from engine.session.records import events as ev
from engine.session.records.verdict import Timing, Verdict
from engine.session.records.verdict_text import is_uncertain, speedup_words
from engine.session.state.session_state import fold
from tests.cluster.hosts import ROOT, Hosts, why_no_namespaces
from tests.cluster.unlike import BROKEN, NEWER, compiler, other_release
from tests.cluster.watching import recorded, verdicts_per_kernel
from tests.patience import PATIENCE_S

CONFIG = """\
name = "many"
problems = ["builtin:quickstart/gelu"]
[search]
rounds = 1
ideas = 1
variants = 1
runoff = 0
[evaluation]
torch_compile = false
trials = 3
max_pairs = 8
threads = 1
[cluster]
scheduler = "tls://10.77.1.1:8786"
certificates = "certs"
"""


@pytest.mark.serial
def test_hosts_that_differ_are_named_and_cost_no_verdict(tmp_path: Path) -> None:
    if why := why_no_namespaces():
        pytest.skip(why)
    with Hosts(tmp_path / "hosts", 4) as hosts:
        hosts.start_scheduler()
        hosts.start_worker("gpu1")
        hosts.start_worker("gpu2", CXX=compiler(hosts.home("gpu2"), NEWER))
        hosts.start_worker("gpu3", tree=other_release(tmp_path / "other"))
        hosts.start_worker("gpu4", CXX=compiler(hosts.home("gpu4"), BROKEN))
        deadline = time.monotonic() + PATIENCE_S
        while not all(" joined " in hosts.log(name) for name in hosts.names):
            assert time.monotonic() < deadline, [hosts.log(name) for name in hosts.names]
            time.sleep(0.05)
        (hosts.engine / "config.toml").write_text(CONFIG)
        ran = hosts.in_hub("run", "config.toml", "--headless")
        assert ran.returncode == 0, ran.stdout + ran.stderr
        session = hosts.engine / "sessions" / "many"
        log = hosts.log("gpu4")
    assert set(verdicts_per_kernel(session).values()) == {1}
    state = fold(recorded(session))
    verdicts = [one.verdict for one in state.variants.values() if one.verdict is not None]
    assert {one.status for one in verdicts} == {"correct"} and {one.host for one in verdicts} <= {"gpu1", "gpu2"}
    warnings = [
        one.event.text
        for one in recorded(session)
        if isinstance(one.event, ev.LogLine) and one.event.level == "warning"
    ]
    (version,) = [text for text in warnings if text.startswith("gpu3")]
    assert "99.1.0 (" in version and f"kernel-tui worker --scheduler {hosts.address('hub')}" in version
    (broken,) = [text for text in warnings if text.startswith("gpu4")]
    assert "cannot find -lgomp" in broken and "kernel-tui doctor" in broken and "cannot find -lgomp" in log
    (differs,) = [text for text in warnings if "g++ 99.1.0" in text]
    assert "gpu1" in differs and "gpu2" in differs
    unlike = {one.host for one in verdicts if any("other software" in flag for flag in one.flags)}
    assert len(unlike) <= 1
    assert {fact.host: "g++ 99.1.0" in fact.software for fact in state.devices.values()} == {
        "gpu1": False,
        "gpu2": True,
    }


def test_a_host_without_a_compiler_does_not_join_and_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    command = [sys.executable, "-m", "tui.cli.main", "worker", "--scheduler", "tls://127.0.0.1:1", "--gpus", "none"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PATH": str(tmp_path / "bin"), "CUDA_VISIBLE_DEVICES": ""}
    environment.pop("CXX", None)
    ended = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=PATIENCE_S)
    assert ended.returncode == 7 and "apt-get install g++" in ended.stderr


def device(host: str) -> DeviceFact:
    return DeviceFact(f"{host}/GPU-1", "cuda", "NVIDIA H200", "sm_90a", 141 << 30, 132, host=host)


def judged(host: str, reference_ms: float) -> Verdict:
    times = {"reference": Timing(reference_ms, reference_ms, reference_ms, 8), "kernel": Timing(1.0, 1.0, 1.0, 8)}
    return Verdict(status="correct", speedup=2.0, host=host, device_id=device(host).id, **times)


def test_times_of_a_slow_host_are_marked_also_those_from_before_a_faster_host_judged() -> None:
    now = [0.0]
    hosts = Comparability(lambda: now[0])
    hosts.joined([device("a"), device("b")])
    first, lines = hosts.judged("gelu", device("a"), judged("a", 4.0))
    assert not is_uncertain(first) and not lines  # Nothing to compare with yet.
    usual, lines = hosts.judged("gelu", device("b"), judged("b", 2.0))
    assert not is_uncertain(usual) and len(lines) == 1 and lines[0].startswith("a is slow")
    assert hosts.keeps_pace("gelu", device("b").id) and not hosts.keeps_pace("gelu", device("a").id)
    assert hosts.has_late_marks("gelu") and hosts.is_odd(device("a")) and not hosts.is_odd(device("b"))
    mark = hosts.marker("gelu")
    assert mark(first).slow_host == 2.0 and mark(usual) is usual
    slow, lines = hosts.judged("gelu", device("a"), judged("a", 6.0))
    assert speedup_words(slow) == "~2.00x" and not lines, "said once"
    assert hosts.pace(device("a").id) == 2.0 and hosts.pace(device("b").id) == 1.0
    now[0] += AGAIN_S
    assert hosts.pace(device("a").id) == 1.0, "it can show that it has recovered"
    for _ in range(3):
        well, _ = hosts.judged("gelu", device("a"), judged("a", 2.1))
        assert not is_uncertain(well)
    assert not hosts.is_odd(device("a"))


def test_the_search_for_late_marks_compares_devices_once_and_not_for_each_kernel() -> None:
    hosts, names = Comparability(), [f"gpu{number}" for number in range(16)]
    hosts.joined(map(device, names))
    for name in names:
        hosts.judged("gelu", device(name), judged(name, 1.0))
    verdicts = [judged(names[number % 16], 1.0) for number in range(1000)]
    profile = cProfile.Profile()
    mark = hosts.marker("gelu")
    profile.runcall(lambda: [mark(one) for one in verdicts])
    assert sum(entry.callcount for entry in profile.getstats()) < 5 * len(verdicts)
