"""Inject faults into a cluster's hosts during an evaluation, and count lost verdicts, duplicate verdicts and orphan
processes.

A search of three quickstart problems uses three hosts over mutual TLS. The hosts are network namespaces without a
shared disk. The script needs root.

    .venv/bin/python benchmarks/cluster_faults.py [--times 3] [--fault killed ...]
"""

from __future__ import annotations

import argparse
import contextlib
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import psutil  # noqa: E402

from engine.session.records import events as ev  # noqa: E402
from engine.session.state.session_state import SessionState, fold  # noqa: E402
from tests.cluster.hosts import Hosts, why_no_namespaces  # noqa: E402
from tests.cluster.processor_limit import limit as limit_processor  # noqa: E402
from tests.cluster.processor_limit import remove_limits, why_no_limits  # noqa: E402
from tests.cluster.unlike import BROKEN, NEWER, compiler, other_release  # noqa: E402
from tests.cluster.watching import at_work, recorded, verdicts_per_kernel, wait_for  # noqa: E402

CONFIG = """\
name = "many"
problems = ["builtin:quickstart/gelu", "builtin:quickstart/swiglu", "builtin:quickstart/softmax"]
[search]
rounds = 1
ideas = 3
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


def killed(hosts: Hosts, host: str) -> list[psutil.Process]:
    """Kill the worker process with SIGKILL. The worker's judges must not survive."""
    worker = hosts.worker_of(host)
    family = [worker, *worker.children(recursive=True)]
    worker.kill()
    return family


def host_killed(hosts: Hosts, host: str) -> list[psutil.Process]:
    """Kill ``kernel-tui worker`` and its worker process with SIGKILL, so that the host does not come back."""
    supervisor = psutil.Process(hosts.processes[host].pid)
    family = [supervisor, *supervisor.children(recursive=True)]
    for one in family[:2]:
        with contextlib.suppress(psutil.NoSuchProcess):
            one.kill()
    return family


def cut(hosts: Hosts, host: str) -> list[psutil.Process]:
    """Cut a host's network without notice to either side."""
    judging = [one for one in hosts.of_host(host) if "engine.cluster.worker.judging_process" in one.info["cmdline"]]
    hosts.cut(host)
    return judging


def hung(hosts: Hosts, host: str) -> list[psutil.Process]:
    """Suspend the worker process with SIGSTOP."""
    hosts.worker_of(host).send_signal(signal.SIGSTOP)
    return []


def stuck(hosts: Hosts, host: str) -> list[psutil.Process]:
    """Suspend the judging process with SIGSTOP, while its worker still sends heartbeats."""
    found = [one for one in hosts.of_host(host) if "engine.cluster.worker.judging_process" in one.info["cmdline"]]
    for one in found:
        one.send_signal(signal.SIGSTOP)
    return found


def scheduler_killed(hosts: Hosts, host: str) -> list[psutil.Process]:
    """Kill the scheduler with SIGKILL, and start another scheduler after five seconds."""
    found = [one for one in hosts.of_host("hub") if "scheduler" in one.info["cmdline"]]
    for one in found:
        one.kill()
    time.sleep(5)
    hosts.start_scheduler()
    return found


def left(hosts: Hosts, host: str) -> list[psutil.Process]:
    """End ``kernel-tui worker`` with SIGTERM, so that the host leaves the cluster, and start the command again after
    five seconds.
    """
    supervisor = psutil.Process(hosts.processes[host].pid)
    family = [supervisor, *supervisor.children(recursive=True)]
    supervisor.terminate()
    time.sleep(5)
    hosts.start_worker(host)
    return family


def slow(hosts: Hosts, host: str) -> list[psutil.Process]:
    """Limit the host's present and future processes to 20% of a core with a cgroup."""
    limit_processor(hosts.of_host(host), 0.2)
    return []


def very_slow(hosts: Hosts, host: str) -> list[psutil.Process]:
    """Limit the host's processes to 2% of a core, which also delays heartbeats."""
    limit_processor(hosts.of_host(host), 0.02)
    return []


def frozen_often(hosts: Hosts, host: str) -> list[psutil.Process]:
    """Suspend and resume all processes of a host for a minute: 1 s stopped, then 0.25 s running."""

    def freeze() -> None:
        until = time.monotonic() + 60
        while time.monotonic() < until and hosts.of_host(host):
            for which, seconds in ((signal.SIGSTOP, 1.0), (signal.SIGCONT, 0.25)):
                for one in hosts.of_host(host):
                    with contextlib.suppress(psutil.NoSuchProcess):
                        one.send_signal(which)
                time.sleep(seconds)

    threading.Thread(target=freeze, daemon=True).start()
    return []


def _changed(hosts: Hosts, host: str, **variables: str) -> list[psutil.Process]:
    supervisor = psutil.Process(hosts.processes[host].pid)
    family = [supervisor, *supervisor.children(recursive=True)]
    supervisor.terminate()
    psutil.wait_procs(family, timeout=20)
    tree = other_release(hosts.directory.parent / "other") if not variables else ROOT
    hosts.start_worker(host, tree=tree, **variables)
    return family


def other_version(hosts: Hosts, host: str) -> list[psutil.Process]:
    """Restart the host's worker with another release of kernel-tui."""
    return _changed(hosts, host)


def other_compiler(hosts: Hosts, host: str) -> list[psutil.Process]:
    """Restart the host's worker with another version of g++."""
    return _changed(hosts, host, CXX=compiler(hosts.home(host), NEWER))


def broken_compiler(hosts: Hosts, host: str) -> list[psutil.Process]:
    """Restart the host's worker with a g++ that cannot link."""
    return _changed(hosts, host, CXX=compiler(hosts.home(host), BROKEN))


def compiler_removed(hosts: Hosts, host: str) -> list[psutil.Process]:
    """Restart the host's worker, and delete its g++ during the search."""
    file = compiler(hosts.home(host), NEWER)
    family = _changed(hosts, host, CXX=file)
    while " joined " not in hosts.log(host).rpartition("started (pid")[2]:
        time.sleep(0.05)
    Path(file).unlink()
    return family


FAULTS: dict[str, Callable[[Hosts, str], list[psutil.Process]]] = {
    one.__name__: one
    for one in (
        *(killed, host_killed, cut, hung, stuck, scheduler_killed, left),
        *(slow, very_slow, frozen_often, other_version, other_compiler, broken_compiler, compiler_removed),
    )
}


@contextlib.contextmanager
def searching(directory: Path) -> Iterator[tuple[Hosts, Path]]:
    with Hosts(directory, 3) as hosts:
        hosts.start_scheduler()
        for name in hosts.names:
            hosts.start_worker(name)
        (hosts.engine / "config.toml").write_text(CONFIG)
        started = hosts.in_hub("run", "config.toml", "--detach")
        if started.returncode:
            sys.exit(started.stderr)
        yield hosts, hosts.engine / "sessions" / "many"


def at_work_anywhere(state: SessionState, hosts: Hosts) -> str | None:
    return next((host for host in hosts.names if at_work(state, host)), None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--fault", choices=list(FAULTS), nargs="*", default=list(FAULTS))
    chosen = parser.parse_args()
    limits = {slow.__name__, very_slow.__name__} & set(chosen.fault)
    if why := why_no_namespaces() or (why_no_limits() if limits else ""):
        sys.exit(why)
    print(
        "fault              ended     s   kernels  correct  lost  doubled  errors  marked  orphans  noticed  log line"
    )
    for name in chosen.fault:
        for _ in range(chosen.times):
            with tempfile.TemporaryDirectory(prefix="cluster-faults-") as directory:
                print(f"{name:<18} {one_search(name, Path(directory) / 'hosts')}", flush=True)


def one_search(name: str, directory: Path) -> str:
    began = time.monotonic()
    with searching(directory) as (hosts, session):
        state = wait_for(session, lambda state: at_work_anywhere(state, hosts) is not None, 90)
        host = at_work_anywhere(state, hosts)
        assert host is not None
        broken_at = time.time()
        family = FAULTS[name](hosts, host)
        deadline = time.monotonic() + 240
        while (state := fold(recorded(session))).engine is None or state.engine.stopped is None:
            if time.monotonic() > deadline:
                break
            time.sleep(0.2)
        took = time.monotonic() - began
        ended = state.engine.stopped if state.engine is not None else None
        _, alive = psutil.wait_procs(family, timeout=20)
        counts = verdicts_per_kernel(session)
        errors = sum(one.verdict is not None and one.verdict.status == "error" for one in state.variants.values())
        correct = sum(one.verdict is not None and one.verdict.correct for one in state.variants.values())
        marked = sum(one.verdict is not None and bool(one.verdict.slow_host) for one in state.variants.values())
        events = [one for one in recorded(session) if one.time > broken_at]
        said = [
            (one.time - broken_at, one.event.reason if isinstance(one.event, ev.DeviceLeft) else one.event.text)
            for one in events
            if isinstance(one.event, ev.DeviceLeft | ev.LogLine) and getattr(one.event, "level", "warning") == "warning"
        ]
        told = [one for one in said if one[1].startswith(host) and "its worker left" not in one[1]] or said
        when, line = told[0] if told else (0.0, "-")
        for one in hosts.of_host(host):
            with contextlib.suppress(psutil.NoSuchProcess):
                one.send_signal(signal.SIGCONT)
        figures = (
            f"{ended!s:<9} {took:3.0f}  {len(counts):7}  {correct:7}  {sum(n == 0 for n in counts.values()):4}  "
            f"{sum(n > 1 for n in counts.values()):7}  {errors:6}  {marked:6}"
        )
        remove_limits()
    orphans = len(alive) + len(hosts.left_processes())
    return f"{figures}  {orphans:7}  {when:5.1f} s  {line[:200]}"


if __name__ == "__main__":
    main()
