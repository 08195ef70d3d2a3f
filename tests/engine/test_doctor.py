"""Findings of ``kernel-tui doctor`` on good and bad machines, with real compilers, torch and sandbox."""

from __future__ import annotations

import re
import subprocess
import sys
from datetime import date
from pathlib import Path
from socketserver import BaseRequestHandler, TCPServer
from threading import Thread

import pytest

from engine.config.schema import parse_config, preset_text
from engine.daemon.logind import LogoutPolicy
from engine.devices.hardware import DeviceReader
from engine.doctor import Finding, models, run_checks, system, tools
from engine.doctor.tracking import tracking
from engine.session.store import EngineLock, create_session, filesystem
from engine.system import tool_paths
from tests.patience import PATIENCE_S

NO_GPU = tools.Gpus(names=(), archs=(), driver="", cuda=None, absence="no NVIDIA driver")
H200 = tools.Gpus(names=("NVIDIA H200",) * 2, archs=("sm_90a",), driver="580.65", cuda=(13, 0), absence=None)


def program(directory: Path, name: str, script: str) -> str:
    """Create an executable that simulates another version of a tool."""
    file = directory / name
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(0o755)
    return str(file)


def test_this_machine_can_search_and_a_check_that_trips_does_not_hide_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def trip(directory: Path) -> Finding:
        raise OSError("disk on fire")

    monkeypatch.setattr(system, "sessions", trip)
    findings = run_checks(parse_config(preset_text("quickstart"), "config.toml"))
    assert ["disk on fire" in finding.what for finding in findings if finding.name == "sessions"] == [True]
    names = [finding.name for finding in findings]
    assert names == sorted(set(names), key=names.index)
    assert {"python", "c++ compiler", "pytorch", "sandbox", "sqlite", "sessions", "keys"} <= set(names)
    assert [finding for finding in findings if finding.level == "fail"] == []
    assert all(finding.remedy for finding in findings if finding.level != "ok")


def test_the_checks_do_not_load_torch_into_the_engine() -> None:
    code = "import sys, engine.doctor; sys.exit(bool({'torch', 'textual', 'rich'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], timeout=PATIENCE_S).returncode == 0


def test_without_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", "/nonexistent")
    finding = tools.cpp_compiler()
    assert finding.level == "fail"
    assert "apt-get install g++" in finding.remedy


def test_a_compiler_without_openmp(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    script = (
        'test "$1" = --version && echo "clang 17.0" && exit 0\necho "probe.cpp:1: error: omp.h not found" >&2; exit 1'
    )
    monkeypatch.setenv("CXX", program(tmp_path, "clang++", script))
    finding = tools.cpp_compiler()
    assert finding.level == "fail"
    assert "clang 17.0 cannot build a kernel with OpenMP" in finding.what
    assert "omp.h not found" in finding.what
    assert "libomp-dev" in finding.remedy


def test_a_compiler_without_cpp20(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    script = 'test "$1" = --version || { echo "g++: error: unrecognized option \'-std=c++20\'" >&2; exit 1; }'
    monkeypatch.setenv("CXX", program(tmp_path, "g++", script))
    finding = tools.cpp_compiler()
    assert finding.level == "fail"
    assert "C++20" in finding.remedy and "OpenMP" not in finding.remedy


def test_a_compiler_that_fails_only_in_the_builder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    script = f'test -n "$LICENSE" && exec {tool_paths.find_cpp_compiler()} "$@"\necho "error: no license"; exit 1'
    monkeypatch.setenv("CXX", program(tmp_path, "g++", script))
    monkeypatch.setenv("LICENSE", "1")
    finding = tools.cpp_compiler()
    assert finding.level == "fail"
    assert "error: no license" in finding.what and "export CXX=" in finding.remedy


@pytest.mark.parametrize(
    ("release", "gpus", "level", "words"),
    [
        ("12.8", H200, "ok", "CUDA 12.8"),
        ("13.4", H200, "ok", "CUDA 13.4"),
        ("14.0", H200, "fail", "too new for driver 580.65, which supports CUDA up to 13.0"),
        ("14.0", NO_GPU, "ok", "CUDA 14.0"),
    ],
)
def test_nvcc_against_the_driver(
    release: str, gpus: tools.Gpus, level: str, words: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    script = f'test "$1" = --version && echo "Cuda compilation tools, release {release}, V{release}.1"\nexit 0'
    monkeypatch.setenv("NVCC", program(tmp_path, "nvcc", script))
    finding = tools.nvcc(gpus, required=False)
    assert (finding.level, words in finding.what) == (level, True)
    assert ("export NVCC=" in finding.remedy) == (level == "fail"), "nvcc on PATH would hide CUDA_HOME"


def test_nvcc_that_cannot_build_says_why(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    script = (
        'test "$1" = --version && echo "release 13.0, V13.0.88" && exit 0\ntest "$1" = --list-gpu-code && exit 0\n'
        'echo "host_config.h:147:2: error: #error -- unsupported GNU version!" >&2; exit 1'
    )
    monkeypatch.setenv("NVCC", program(tmp_path, "nvcc", script))
    finding = tools.nvcc(H200, required=True)
    assert finding.level == "fail"
    assert "cannot build a kernel: host_config.h:147:2: error: #error -- unsupported GNU version!" in finding.what
    assert "older C++ compiler" in finding.remedy


def test_without_a_toolkit_the_remedy_is_one_installation(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for variable in ("NVCC", "CUDA_HOME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(tool_paths, "SYSTEM_TOOLKIT", tmp_path / "none")
    monkeypatch.setattr(sys, "path", [])
    finding = tools.nvcc(H200, required=False)
    assert finding.level == "fail"
    assert "pip install 'kernel-tui[cuda]'" in finding.remedy
    assert tools.nvcc(NO_GPU, required=False).level == "ok"


@pytest.mark.parametrize(
    ("today", "level", "words"),
    [
        (date(2026, 11, 21), "warn", "o3 on 2026-12-11, in 20 days"),
        (date(2026, 12, 11), "fail", "retired o3 on 2026-12-11"),
    ],
)
def test_models_that_are_switched_off(today: date, level: str, words: str) -> None:
    text = 'problems = ["builtin:quickstart/softmax"]\n[[models]]\nprovider = "openai"\nmodel = "o3-2025-04-16"\n'
    finding = models.retirements(parse_config(text, "config.toml"), today)
    assert (finding.level, words.replace("o3 ", "o3-2025-04-16 ") in finding.what, bool(finding.remedy)) == (
        level,
        True,
        True,
    )
    published = models.retirements(parse_config(preset_text("published"), "config.toml"), today)
    assert published.level == "ok"
    assert models.retirements(None).level == "ok"


def test_nvcc_that_does_not_know_the_device(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    script = 'test "$1" = --version && echo "release 11.7, V11.7.1" || echo "sm_70 sm_80"'
    monkeypatch.setenv("NVCC", program(tmp_path, "nvcc", script))
    finding = tools.nvcc(H200, required=True)
    assert finding.level == "fail"
    assert "cannot build for sm_90a" in finding.what
    assert "export NVCC=" in finding.remedy


def test_pytorch_on_the_import_path_of_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    version = "class version: cuda = None\nclass cuda:\n    is_available = staticmethod(lambda: False)\n"
    (tmp_path / "torch.py").write_text(f'__version__ = "9.8.7"\n{version}')
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert tools.torch(NO_GPU, required=False) == Finding("pytorch", "ok", "torch 9.8.7, CPU only")


def test_counters_that_only_root_may_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program(tmp_path, "ncu", "exit 0")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    (tmp_path / "params").write_text("ModifyDeviceFiles: 1\nRmProfilingAdminOnly: 1\n")
    finding = tools.counters(H200, tmp_path / "params")
    assert finding.level == "warn"
    assert "NVreg_RestrictProfilingToAdminUsers=0" in finding.remedy
    (tmp_path / "params").write_text("ModifyDeviceFiles: 1\nRmProfilingAdminOnly: 0\n")
    assert tools.counters(H200, tmp_path / "params").level == "ok"
    assert tools.counters(NO_GPU).level == "ok"


def test_a_gpu_that_the_config_asks_for_must_be_there() -> None:
    finding = tools.nvidia_driver(NO_GPU, required=True)
    assert finding.level == "fail"
    assert 'device = "cpu"' in finding.remedy
    assert tools.nvidia_driver(NO_GPU, required=False).level == "ok"
    assert "2 x NVIDIA H200 (sm_90a), driver 580.65, supports CUDA up to 13.0" in tools.nvidia_driver(H200, True).what


def test_an_isolation_that_is_switched_off_is_remarked() -> None:
    config = parse_config('problems = ["builtin:quickstart/softmax"]\n[evaluation]\nsandbox = "off"\n', "config.toml")
    assert tools.sandbox(config).level == "warn"


@pytest.mark.parametrize(
    ("version", "level", "words"),
    [
        ((3, 34, 1), "fail", "too old"),
        ((3, 37, 0), "ok", "WAL-reset"),
        ((3, 51, 2), "ok", "WAL-reset"),
        ((3, 51, 3), "ok", "SQLite 3.51.3"),
    ],
)
def test_sqlite(version: tuple[int, ...], level: str, words: str) -> None:
    finding = system.sqlite(version)
    assert (finding.level, words in finding.what) == (level, True)


def test_sessions_that_do_not_exist_yet_are_judged_by_their_parent(tmp_path: Path) -> None:
    finding = system.sessions(tmp_path / "not" / "there")
    assert finding.level == "ok"
    assert "GiB free" in finding.what


def test_sessions_on_a_network_file_system(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    mounts = tmp_path / "mountinfo"
    mounts.write_text(f"36 35 0:30 / {tmp_path} rw,relatime - nfs4 server:/home rw\n")
    finding = system.sessions(tmp_path / "sessions", mounts)
    assert finding.level == "fail"
    assert "NFS" in finding.what
    assert str(filesystem.local_state_directory()) in finding.what + finding.remedy


@pytest.mark.parametrize(
    ("policy", "level", "words"),
    [
        (LogoutPolicy(kills=False), "ok", ""),
        (LogoutPolicy(kills=True, lingers=True, scope=True), "ok", "scope"),
        (LogoutPolicy(kills=True, scope=True), "warn", "enable-linger"),
        (LogoutPolicy(kills=True), "warn", "Stay logged in"),
    ],
)
def test_what_logging_out_does_to_a_search(policy: LogoutPolicy, level: str, words: str) -> None:
    finding = system.logout(policy)
    assert (finding.level, words in finding.what + finding.remedy) == (level, True)


def test_keys_are_named_and_never_shown() -> None:
    published = parse_config(preset_text("published"), "config.toml")
    missing = system.keys(published, {"GEMINI_API_KEY": "secret"})
    assert (missing.level, missing.remedy) == ("fail", "export OPENAI_API_KEY=...")
    present = system.keys(published, {"GEMINI_API_KEY": "secret", "OPENAI_API_KEY": "secret"})
    assert present == Finding("keys", "ok", "set: OPENAI_API_KEY, GEMINI_API_KEY")
    assert system.keys(None, {}).level == "ok"


@pytest.mark.parametrize(("language", "level"), [("cuda", "fail"), ("triton", "fail"), ("cpp", "ok")])
def test_languages_that_the_device_cannot_run(language: str, level: str) -> None:
    cpu = [one for one in DeviceReader().discover() if one.kind == "cpu"]
    config = parse_config(f'problems = ["builtin:quickstart/gelu"]\n[search]\nlanguages = ["{language}"]\n', "c.toml")
    finding = models.languages(config, cpu)
    assert finding.level == level and language in finding.what and (level == "ok") == (not finding.remedy)


TRACKED = 'problems = ["builtin:quickstart/gelu"]\n[tracking]\nmlflow = "http://127.0.0.1:{}"\n'


def tracked_by(reply: bytes) -> Finding:
    """Check a server that answers with ``reply`` and closes the connection."""

    class Answer(BaseRequestHandler):
        def handle(self) -> None:
            self.request.recv(1 << 12)
            self.request.sendall(reply)

    with TCPServer(("127.0.0.1", 0), Answer) as server:
        thread = Thread(target=server.handle_request)
        thread.start()
        finding = tracking(parse_config(TRACKED.format(server.server_address[1]), "c.toml"))
        thread.join()
    return finding


@pytest.mark.parametrize(
    ("reply", "level", "words"),
    [
        (b"HTTP/1.0 200 OK\r\n\r\nOK", "ok", "answers"),
        (b"HTTP/1.0 401 Unauthorized\r\n\r\n", "ok", "answers"),
        (b"HTTP/1.0 501 Not Implemented\r\n\r\n", "warn", "HTTP status 501"),
        (b"SSH-2.0-OpenSSH\r\n", "warn", "BadStatusLine"),
    ],
)
def test_a_tracking_server_must_answer(reply: bytes, level: str, words: str) -> None:
    finding = tracked_by(reply)
    assert finding.level == level and words in finding.what, finding
    assert bool(finding.remedy) == (level == "warn")


def test_a_tracking_server_that_is_not_there() -> None:
    with TCPServer(("127.0.0.1", 0), BaseRequestHandler) as server:
        port = server.server_address[1]
    finding = tracking(parse_config(TRACKED.format(port), "c.toml"))
    assert finding.level == "warn" and "Connection refused" in finding.what and finding.remedy


def test_programs_that_a_config_names_must_exist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = 'problems = ["builtin:quickstart/softmax"]\n[[models]]\nprovider = "command"\ncommand = ["my-agent"]\n'
    config = parse_config(text + 'key_env = "AGENT_KEY"\n', tmp_path / "config.toml")
    missing = models.programs(config)
    assert (missing.level, "the program my-agent in PATH" in missing.what, bool(missing.remedy)) == ("fail", True, True)
    program(tmp_path, "my-agent", "exit 0")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert models.programs(config) == Finding("programs", "ok", "my-agent")
    assert models.programs(None).level == "ok"
    assert system.keys(config, {}).remedy == "export AGENT_KEY=..."


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({"OMP_NUM_THREADS": "1"}, "OMP_NUM_THREADS=1"),
        ({"OMP_NUM_THREADS": "2,1"}, "OMP_NUM_THREADS=2,1"),
        ({"OMP_WAIT_POLICY": "ACTIVE"}, "OMP_WAIT_POLICY=active"),
    ],
)
def test_openmp_settings_that_spoil_timings(environment: dict[str, str], words: str) -> None:
    finding = system.threads(environment, cores=4)
    assert finding.level == "warn"
    assert words in finding.what


@pytest.mark.parametrize(("share", "level"), [(0.02, "ok"), (0.6, "warn")])
def test_running_programs_disturb_timings(share: float, level: str) -> None:
    finding = system.threads({}, cores=4, used=lambda: share)
    assert finding.level == level
    assert f"{share:.0%} of" in finding.what


def test_a_busy_processor_names_the_running_searches(tmp_path: Path) -> None:
    first, _ = (create_session(tmp_path, name, "", "config.toml", 0) for name in ("first", "second"))
    lock = EngineLock(first)
    busy = system.threads({}, cores=4, used=lambda: 0.6, directory=tmp_path)
    lock.release()
    assert busy.what.endswith("60% of 4 cores; running searches: first")
    idle = system.threads({}, cores=4, used=lambda: 0.6, directory=tmp_path / "none")
    assert idle.what.endswith("60% of 4 cores")


def test_the_processor_use_is_measured() -> None:
    assert re.search(r"use \d+% of", system.threads({}, cores=4).what)
