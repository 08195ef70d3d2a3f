"""Which devices of a cluster may judge, and what the engine says about the others."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from engine.cluster import messages as m
from engine.cluster.roster import ASIDE_S, SILENT_S, Device, Roster
from engine.devices.fact import DeviceFact


class Observed:
    """A roster with a clock of its own, and what it said."""

    def __init__(self, model: str = "", kinds: frozenset[str] = frozenset({"cuda"}), **known: DeviceFact) -> None:
        self.now = 100.0
        self.joined: list[str] = []
        self.left: dict[str, str] = {}
        self.refused: list[str] = []
        self.roster = Roster(
            *(kinds, model, known.values(), self._join, self._leave, self.refused.append),
            *("kernel-tui worker --scheduler tls://hub:8786", self._clock),
        )

    def _clock(self) -> float:
        return self.now

    def _join(self, device: Device) -> None:
        self.joined.append(device.id)

    def _leave(self, device: Device, why: str) -> None:
        self.left[device.id] = why

    @property
    def usable(self) -> set[str]:
        return {device.host for device in self.roster.usable()}


def fact(host: str, name: str = "NVIDIA H200") -> DeviceFact:
    return DeviceFact(f"{host}/GPU-1", "cuda", name, "sm_90a", 141 << 30, 132, host=host)


def beat(host: str, name: str = "NVIDIA H200", **others: Any) -> m.Beat:
    values = {"address": f"tls://{host}:1", "start": "1", "version": m.version(), "torch": m.torch_version(), **others}
    return m.Beat(device=fact(host, name), builders=2, **values)


def test_the_most_frequent_model_judges_and_others_are_told_why_not() -> None:
    seen = Observed()
    for one in (beat("a", "NVIDIA L40S"), beat("b"), beat("c")):
        seen.roster.hear(one)
    assert seen.usable == set()
    seen.roster.settle()
    assert seen.usable == {"b", "c"}
    (why,) = seen.refused
    assert why.startswith("a: ") and "L40S" in why and "gpu in [cluster]" in why
    seen.roster.hear(beat("d", "NVIDIA L40S"))
    assert seen.usable == {"b", "c"}


def test_a_resumed_session_keeps_its_model_and_its_peaks() -> None:
    before = replace(fact("b"), bandwidth_gbs=4000.0, peak_gflops=9e5)
    seen = Observed("NVIDIA H200", known=before)
    for one in (beat("a", "NVIDIA L40S"), beat("c", "NVIDIA L40S"), beat("b")):
        seen.roster.hear(one)
    (device,) = seen.roster.usable()
    assert device.fact == before


def test_hosts_of_another_version_or_without_a_compiler_do_not_judge_until_they_can() -> None:
    seen = Observed("NVIDIA H200")
    seen.roster.hear(beat("old", version="0.0.1 (0123)"))
    seen.roster.hear(beat("bare", lacks="no nvcc found; pip install 'kernel-tui[cuda]'"))
    seen.roster.hear(beat("bare", lacks="no nvcc found; pip install 'kernel-tui[cuda]'"))
    assert seen.usable == set() and len(seen.refused) == 2
    assert (
        "pip install 'kernel-tui[cluster]==" in seen.refused[0]
        and "0.0.1 (0123)" in seen.refused[0]
        and "pip install" in seen.refused[1]
    )
    seen.roster.hear(beat("bare"))
    assert seen.usable == {"bare"} and seen.joined == ["bare/GPU-1"]
    seen.roster.hear(beat("bare", lacks="no nvcc found"))
    assert seen.usable == set() and "no nvcc" in seen.left["bare/GPU-1"]


def test_a_host_with_another_pytorch_does_not_judge() -> None:
    seen = Observed("NVIDIA H200")
    seen.roster.hear(beat("old", torch="1.0.0"))
    assert seen.usable == set() and f"pip install torch=={m.torch_version()}" in seen.refused[0]


def test_the_reason_of_a_loss_promises_another_device_only_if_there_is_one() -> None:
    seen = Observed("NVIDIA H200")
    for host in ("a", "b", "c"):
        seen.roster.hear(beat(host))
    seen.now += SILENT_S + 1
    seen.roster.hear(beat("c"))
    seen.roster.look()
    assert all("another device" in seen.left[f"{host}/GPU-1"] for host in ("a", "b"))
    for host in ("a", "b"):
        seen.roster.hear(beat(host))
    seen.left.clear()
    seen.now += SILENT_S + 1
    seen.roster.look()  # All fall silent at once.
    assert len(seen.left) == 3 and not any("another device" in why for why in seen.left.values())


def test_a_silent_device_is_lost_and_may_come_back() -> None:
    seen = Observed("NVIDIA H200")
    seen.roster.hear(beat("a"))
    seen.now += SILENT_S + 1
    seen.roster.look()
    assert seen.usable == set() and "kernel-tui worker --scheduler tls://hub" in seen.left["a/GPU-1"]
    seen.roster.hear(beat("a"))
    assert seen.usable == {"a"}


def test_a_restarted_worker_is_another_and_late_messages_of_the_first_do_not_count() -> None:
    seen = Observed("NVIDIA H200")
    seen.roster.hear(beat("a", start="1"))
    (first,) = seen.roster.usable()
    seen.roster.hear(beat("a", start="2", address="tls://a:2"))
    (second,) = seen.roster.usable()
    assert first.lost and second is not first
    seen.roster.hear(beat("a", start="1"))
    assert [device.beat.address for device in seen.roster.usable()] == ["tls://a:2"]


def test_the_goodbye_of_an_earlier_worker_does_not_end_the_worker_that_replaced_it() -> None:
    seen = Observed("NVIDIA H200")
    for start in ("100.000", "200.000"):
        seen.roster.hear(beat("a", start=start))
    seen.roster.hear_leaving(m.Leaving("a/GPU-1", "100.000"))
    assert seen.usable == {"a"}
    for leaving in (m.Leaving("a/GPU-1", "200.000"), m.Leaving("a/GPU-1")):  # Older releases send no start.
        seen.roster.hear_leaving(leaving)
        assert seen.usable == set() and seen.left == {"a/GPU-1": "a: its worker left"}
        seen.roster.hear(beat("a", start="300.000"))


def test_a_host_with_faults_in_a_row_gets_no_work_for_a_while() -> None:
    seen = Observed("NVIDIA H200")
    seen.roster.hear(beat("a"))
    (device,) = seen.roster.usable()
    seen.roster.blame(device, "the disk is full")
    seen.roster.praise(device)
    seen.roster.blame(device, "the disk is full")
    assert seen.usable == {"a"}
    seen.roster.blame(device, "the disk is full")
    assert seen.usable == set() and "the disk is full" in seen.refused[-1]
    seen.now += ASIDE_S
    assert seen.usable == {"a"}


def test_a_host_that_keeps_leaving_gets_no_work_for_a_while() -> None:
    seen = Observed("NVIDIA H200")
    for start in ("1", "2"):
        seen.roster.hear(beat("a", start=start))
        assert seen.usable == {"a"}
        seen.roster.left("a/GPU-1", "a: its worker was killed", fault=True)
    seen.roster.hear(beat("a", start="3"))
    assert seen.usable == set() and "keeps leaving" in seen.refused[-1]
    seen.now += ASIDE_S
    assert seen.usable == {"a"}
    (device,) = seen.roster.usable()
    seen.roster.praise(device)
    seen.roster.left("a/GPU-1", "a: its worker was killed", fault=True)
    seen.roster.hear(beat("a", start="4"))
    assert seen.usable == {"a"}


def test_if_no_host_can_judge_the_log_says_why() -> None:
    seen = Observed()
    seen.roster.hear(beat("bare", lacks="no nvcc found; pip install 'kernel-tui[cuda]'"))
    seen.roster.settle()
    seen.roster.settle()
    (why,) = seen.refused
    assert "no nvcc" in why and seen.roster.refusals == (why,)
