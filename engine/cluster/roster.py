"""The devices of a cluster: which devices joined or left, which may judge, and why the others may not.

This module performs no I/O.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from engine import __version__
from engine.cluster import messages as m
from engine.devices.fact import DeviceFact
from engine.devices.waiting_line import KeptProblems, Waiting
from engine.evaluation.judge_policy import POLICY

SILENT_S = 8.0
"""Seconds without a heartbeat after which a device counts as lost: eight missing heartbeats."""
ASIDE_S = 60.0
"""Seconds for which a device gets no work after :data:`MOST_FAULTS` faults in a row."""
MOST_FAULTS = 2


@dataclass
class Device:
    """A device on another host.

    ``assigned``: number of kernels for this device. ``sent``: the tasks at the device's host, not counting builds: the
    running task and perhaps a kernel that waits behind it. For a kernel, the list contains the digest of its machine
    code or ""; for any other task, None. ``waiting``: whether a process outside the search occupies the device, so that
    the tasks wait. ``building``: number of builds in progress. ``kept``: problems that the device has open. ``faults``:
    failures in a row that the host caused. ``measured``: whether the judge has the device's peaks. ``presence``: the
    task that keeps the engine's judges on the device. ``build_line``: tickets of the kernels that wait for a builder.
    ``judge_line``: the kernels that wait for the device. ``lost``: whether the device left. If it joins again, it gets
    a new object.
    """

    beat: m.Beat
    heard_at: float
    fact: DeviceFact
    refusal: str = ""
    assigned: int = 0
    sent: list[str | None] = field(default_factory=list)
    waiting: bool = False
    building: int = 0
    kept: KeptProblems = field(init=False)
    faults: int = 0
    aside_until: float = 0.0
    lost: bool = False
    measured: bool = False
    presence: Any = None
    build_line: list[int] = field(default_factory=list)
    judge_line: list[Waiting] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.kept = KeptProblems(int(POLICY.device.problems_kept[self.fact.kind]))

    @property
    def id(self) -> str:
        return self.fact.id

    @property
    def host(self) -> str:
        return self.fact.host


class Roster:
    """All devices of the cluster, by id.

    - ``kinds``: kinds of devices that may judge
    - ``model``: the only model that may judge; "" until :meth:`settle` chooses it
    - ``known``: devices of an earlier engine, whose measured peaks stay valid
    - ``on_join``: called when a device may judge
    - ``on_leave``: called when a device may no longer judge, with the reason
    - ``on_refuse``: called once per worker that may not judge, with the reason
    - ``join_command``: what to type on a host to join
    """

    def __init__(
        self,
        kinds: frozenset[str],
        model: str,
        known: Iterable[DeviceFact],
        on_join: Callable[[Device], None],
        on_leave: Callable[[Device, str], None],
        on_refuse: Callable[[str], None],
        join_command: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._kinds, self.model = kinds, model
        self._known = {device.id: device for device in known}
        self._on_join, self._on_leave, self._on_refuse, self._clock = on_join, on_leave, on_refuse, clock
        self.devices: dict[str, Device] = {}
        self._refused: dict[str, str] = {}
        self._losses: dict[str, int] = {}
        """How many times the engine has lost each device since its last verdict, by id. A host that keeps joining and
        leaving does not finish any work.
        """
        self._join_command = join_command
        self._settled = bool(model)

    def hear(self, beat: m.Beat) -> None:
        """Note a heartbeat."""
        now, before = self._clock(), self.devices.get(beat.device.id)
        if before is not None and before.beat.start == beat.start:
            before.heard_at, before.beat = now, beat
            if self._settled and not before.lost and (refusal := self._refusal(beat)) != before.refusal:
                before.refusal = refusal
                if refusal:
                    self._refuse(beat.device.id, refusal)
                    self._on_leave(before, refusal)
                else:
                    self._on_join(before)
            return
        if before is not None:
            if before.beat.start > beat.start:  # This heartbeat is late: it is from an earlier start.
                return
            self._leave(before, f"{before.host}: its worker restarted")
        self.devices[beat.device.id] = device = Device(beat, now, self._with_peaks(beat.device))
        if (losses := self._losses.get(device.id, 0)) >= MOST_FAULTS:
            device.faults = losses - 1
            self.blame(device, "its worker keeps leaving and joining")
        if self._settled:
            self._admit(device)

    def hear_strange(self, beat: m.AnyBeat) -> None:
        """Record an unreadable heartbeat from a worker of another release."""
        host = beat.device.host or "a host"
        self._refuse(beat.device.id or host, self._of_another_version(host, beat.version))

    def settle(self) -> None:
        """Choose the device model, if none is set, and admit the devices that have joined so far.

        The model is the most frequent one among devices that could judge. If no device could judge, report the reasons.
        """
        if not self.model:
            models = Counter(one.beat.device.name for one in self.devices.values() if not self._refusal(one.beat))
            if not models:
                for device in self.devices.values():
                    self._refuse(device.id, self._refusal(device.beat))
                return
            self.model = models.most_common(1)[0][0]
        self._settled = True
        for device in self.devices.values():
            self._admit(device)

    def left(self, device_id: str, why: str, *, fault: bool = False) -> None:
        """Record that a device left. ``fault``: whether its worker was killed or fell silent."""
        if (device := self.devices.pop(device_id, None)) is not None:
            if fault:
                self._losses[device_id] = self._losses.get(device_id, 0) + 1
            self._leave(device, why)

    def hear_leaving(self, leaving: m.Leaving) -> None:
        """Note that a worker shuts down, unless a newer worker has replaced it on its device."""
        device = self.devices.get(leaving.device)
        if device is not None and leaving.start in ("", device.beat.start):
            self.left(device.id, f"{device.host}: its worker left")

    def look(self) -> None:
        """Remove devices that have been silent for too long."""
        now = self._clock()
        for device in [one for one in self.devices.values() if now - one.heard_at > SILENT_S]:
            self.left(
                device.id,
                f"{device.host}: its worker sent no heartbeat for {SILENT_S:g} s; {self.fate_of_work(device)}. Check "
                f"the host and its network. If the worker ended, start it again: {self._join_command}",
                fault=True,
            )

    def blame(self, device: Device, why: str) -> None:
        """Count a failure that the host caused."""
        device.faults += 1
        if device.faults >= MOST_FAULTS and not device.lost:
            device.aside_until = self._clock() + ASIDE_S
            self._on_refuse(
                f"{device.host}: the engine sends it no work for {ASIDE_S:g} s after {device.faults} failures: {why}"
            )

    def praise(self, device: Device) -> None:
        device.faults = 0
        self._losses.pop(device.id, None)

    def usable(self) -> list[Device]:
        """Devices that may judge now."""
        now = self._clock()
        return [one for one in self.admitted() if one.aside_until <= now]

    def admitted(self) -> list[Device]:
        """Devices that may judge, including those that get no work for a while."""
        return [one for one in self.devices.values() if self._settled and not one.refusal]

    def fate_of_work(self, device: Device) -> str:
        """Describe what happens to the work that ``device`` loses."""
        now = self._clock()
        able = [one for one in self.usable() if now - one.heard_at <= SILENT_S]
        if able == [device] and not device.lost:
            return "the same device repeats its work"
        others = any(one is not device for one in able)
        return "another device repeats its work" if others else "its work waits for a device"

    def measured(self, device: Device, bandwidth_gbs: float, peak_gflops: float) -> None:
        """Record a device's measured peaks."""
        device.fact = replace(device.fact, bandwidth_gbs=bandwidth_gbs, peak_gflops=peak_gflops)
        self._known[device.id] = device.fact

    def _admit(self, device: Device) -> None:
        device.refusal = self._refusal(device.beat)
        if device.refusal:
            self._refuse(device.id, device.refusal)
        else:
            self._refused.pop(device.id, None)
            self._on_join(device)

    @property
    def refusals(self) -> tuple[str, ...]:
        """Reasons why devices that joined may not judge."""
        return tuple(self._refused.values())

    def _refuse(self, device_id: str, refusal: str) -> None:
        if self._refused.get(device_id) != refusal:
            self._refused[device_id] = refusal
            self._on_refuse(refusal)

    def _leave(self, device: Device, why: str) -> None:
        device.lost = True
        if self._settled and not device.refusal:
            self._on_leave(device, why)

    def _refusal(self, beat: m.Beat) -> str:
        """Return the reason why a device may not judge, and the remedy; "" if it may judge."""
        host, fact = beat.device.host, beat.device
        if beat.version != m.version():
            return self._of_another_version(host, beat.version)
        if beat.lacks:
            return f"{host}: {beat.lacks}"
        if beat.torch != m.torch_version():
            return (
                f"{host}: it has PyTorch {beat.torch}, but the engine has {m.torch_version()}; different versions "
                f"compute different reference outputs. Type on the host: pip install torch=={m.torch_version()}"
            )
        if fact.kind not in self._kinds:
            return (
                f"{host}: its worker judges on the {fact.kind}, which evaluation.device excludes; set in the config: "
                'evaluation.device = "auto"'
            )
        if self.model and fact.name != self.model:
            return (
                f"{host}: it has {fact.name}, but this session judges on {self.model}; times of different models are "
                "not comparable. To use it in another session, set gpu in [cluster] to its model"
            )
        return ""

    def _of_another_version(self, host: str, theirs: str) -> str:
        """Return the message that refuses a worker of version ``theirs``: both versions, and what to type."""
        release, _, _ = theirs.partition(" ")
        install = f"pip install 'kernel-tui[cluster]=={__version__}'"
        if release == __version__:  # Two checkouts of one release can differ.
            install = "pip install '.[cluster]' in a copy of the engine's checkout"
        return (
            f"{host}: it has kernel-tui {theirs}, but the engine has {m.version()}; verdicts of different judges are "
            f"not comparable. On the host, run {install}, then {self._join_command}"
        )

    def _with_peaks(self, fact: DeviceFact) -> DeviceFact:
        before = self._known.get(fact.id)
        if before is None or (before.name, before.arch, before.cores) != (fact.name, fact.arch, fact.cores):
            return fact
        return replace(fact, bandwidth_gbs=before.bandwidth_gbs, peak_gflops=before.peak_gflops)
