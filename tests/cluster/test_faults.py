"""A search on three hosts, of which one is killed and another loses its network during an evaluation."""

from __future__ import annotations

import time
from pathlib import Path

import psutil
import pytest

from engine.session.records import events as ev
from engine.session.state.session_state import fold
from tests.cluster.hosts import Hosts, why_no_namespaces
from tests.cluster.watching import at_work, recorded, verdicts_per_kernel, wait_for
from tests.patience import PATIENCE_S

CONFIG = """\
name = "many"
problems = ["builtin:quickstart/gelu", "builtin:quickstart/swiglu"]
[search]
rounds = 1
ideas = 2
variants = 1
runoff = 2
[evaluation]
torch_compile = false
trials = 3
max_pairs = 8
threads = 1
[cluster]
scheduler = "tls://10.77.1.1:8786"
certificates = "certs"
"""


def ended(processes: list[psutil.Process], seconds: float) -> bool:
    return not psutil.wait_procs(processes, timeout=seconds)[1]


def no_process(module: str, hosts: Hosts, host: str) -> bool:
    """Wait until the host has no process of the module."""
    deadline = time.monotonic() + 10
    while any(module in one.info["cmdline"] for one in hosts.of_host(host)):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


def at_work_anywhere(session: Path, but: str = "") -> str:
    """Wait until a host judges a kernel, and return the host."""
    hosts = [f"gpu{number}" for number in (1, 2, 3) if f"gpu{number}" != but]
    state = wait_for(session, lambda state: any(at_work(state, host) for host in hosts), 60)
    return next(host for host in hosts if at_work(state, host))


@pytest.mark.serial
def test_a_search_survives_a_killed_host_and_a_cut_network(tmp_path: Path) -> None:
    if why := why_no_namespaces():
        pytest.skip(why)
    with Hosts(tmp_path / "hosts", 3) as hosts:
        hosts.start_scheduler()
        for name in hosts.names:
            hosts.start_worker(name)
        (hosts.engine / "config.toml").write_text(CONFIG)
        started = hosts.in_hub("run", "config.toml", "--detach")
        assert started.returncode == 0, started.stderr
        session = hosts.engine / "sessions" / "many"

        killed = at_work_anywhere(session)
        worker = hosts.worker_of(killed)
        family = [worker, *worker.children(recursive=True)]
        worker.kill()
        struck = {killed: at_work(fold(recorded(session)), killed)}
        assert ended(family, 5), "judges outlive a killed worker"

        cut = at_work_anywhere(session, but=killed)
        hosts.cut(cut)
        struck[cut] = at_work(fold(recorded(session)), cut)

        deadline = time.monotonic() + PATIENCE_S
        while (state := fold(recorded(session))).engine is None or state.engine.stopped is None:
            assert time.monotonic() < deadline, "the search did not end"
            time.sleep(0.2)
        assert state.engine.stopped == "finished", state.engine.message
        assert set(verdicts_per_kernel(session).values()) == {1}, "a verdict is lost or given twice"
        assert any(struck.values())
        assert {state.variants[one].verdict.status for one in state.variants} <= {"correct", "build_error", "wrong"}
        lost = {one.event.device: one.event.reason for one in recorded(session) if isinstance(one.event, ev.DeviceLeft)}
        assert lost.keys() == {f"{killed}/cpu", f"{cut}/cpu"}
        assert "killed" in lost[f"{killed}/cpu"] and "kernel-tui worker" in lost[f"{cut}/cpu"]
        assert all(state.variants[one].verdict.host != cut for one in struck[cut])
        assert no_process("engine.daemon.service", hosts, "hub")
        (survivor,) = set(hosts.names) - {killed, cut}
        assert no_process("engine.cluster.worker.judging_process", hosts, survivor), "judges outlive their engine"
    assert hosts.left_processes() == []
