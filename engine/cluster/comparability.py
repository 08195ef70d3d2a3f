"""Decide whether times from two hosts are comparable, based on the hosts' software and reference times.

This module performs no I/O. Hosts that differ can still judge kernels, because a speedup is the ratio of two times from
one host. Verdicts from these hosts include a remark, and tables mark a slow host's speedups with ``~``.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from functools import cache, partial
from statistics import median_low

from msgspec.structs import replace

from engine.devices.fact import DeviceFact
from engine.devices.software import usual_software, versions_beside
from engine.session.records.verdict import Verdict

SLOWER = {"cpu": 1.5, "cuda": 1.15}
"""Slowdown above which a host is slow: its time for a problem's reference, divided by the fastest other host's time.
The speeds of GPUs of one model differ by a few percent, and processors share caches and power with other programs.
"""
AGAIN_S = 60.0
"""Seconds without a verdict after which a slow device gets another kernel."""
_KEPT = 5


class Comparability:
    """The devices that judge, with their software and their reference times for each problem."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._facts: dict[str, DeviceFact] = {}
        self._told: set[tuple[str, ...]] = set()
        self._references: dict[str, dict[str, deque[float]]] = {}
        self._slow: dict[str, tuple[float, float]] = {}
        """For each slow device: its slowdown, and the time at which it was last slow."""
        self._told_slow: set[str] = set()

    # Software

    def joined(self, facts: Iterable[DeviceFact]) -> list[str]:
        """Record devices that judge. Return a log line for each new, unusual set of versions."""
        self._facts |= {fact.id: fact for fact in facts}
        lines = []
        for fact in self._facts.values():
            if fact.software in self._told or not (words := self.unlike(fact)):
                continue
            self._told.add(fact.software)
            usual = usual_software(self._facts.values())
            others = dict.fromkeys(one.host for one in self._facts.values() if one.software == usual)
            have = f"{', '.join(others)} {'have' if len(others) > 1 else 'has'}"
            lines.append(
                f"{fact.host} has {words}, but {have} {versions_beside(usual, fact.software) or 'no such version'}. "
                "Its compilers may produce different machine code, so its verdicts include a remark, and other hosts "
                "run the runoffs. To get the same builds, install the same versions on it"
            )
        return lines

    def left(self, device_id: str) -> None:
        self._facts.pop(device_id, None)
        self._slow.pop(device_id, None)

    def unlike(self, fact: DeviceFact) -> str:
        """Return the versions in which a device's host differs from most others (``g++ 13.2.0``); "" if none differ."""
        return versions_beside(fact.software, usual_software(self._facts.values()))

    # Pace

    def is_odd(self, fact: DeviceFact) -> bool:
        """Return whether a device is slow or has unusual software."""
        return fact.id in self._slow or bool(self.unlike(fact))

    def keeps_pace(self, problem: str, device_id: str) -> bool:
        """Return whether a device has run a problem's reference as fast as other devices have. Otherwise, it may be
        slow.
        """
        times = self._references.get(problem, {})
        return device_id not in self._slow and device_id in times and len(times) > 1

    def pace(self, device_id: str) -> float:
        """Return a device's slowdown relative to the fastest other device, or 1 if it is not slow.

        After :data:`AGAIN_S` seconds without a verdict, return 1, so that the device gets work and can show that it has
        recovered.
        """
        ratio, since = self._slow.get(device_id, (1.0, 0.0))
        return ratio if self._clock() - since < AGAIN_S else 1.0

    def judged(self, problem: str, fact: DeviceFact, verdict: Verdict) -> tuple[Verdict, list[str]]:
        """Record a verdict from the device ``fact``. Return the verdict with its marks, and lines for the log."""
        if words := self.unlike(fact):
            remark = f"built with different software than on most hosts: {words}"
            verdict = replace(verdict, flags=(*verdict.flags, remark))
        if verdict.reference is None:
            return verdict, []
        times = self._references.setdefault(problem, {}).setdefault(fact.id, deque(maxlen=_KEPT))
        times.append(verdict.reference.median_ms)
        return self.marker(problem)(verdict), self._find_slow(problem)

    def _find_slow(self, problem: str) -> list[str]:
        """Find the devices that are slow for a problem. Return a log line for each newly slow device."""
        lines = []
        for device_id, times in self._references[problem].items():
            fastest_ms, fastest = self._fastest_other(problem, device_id)
            if not fastest_ms or (ratio := median_low(times) / fastest_ms) <= self._most():
                self._slow.pop(device_id, None)
                continue
            self._slow[device_id] = ratio, self._clock()
            if device_id not in self._told_slow:
                self._told_slow.add(device_id)
                lines.append(
                    f"{_host(device_id)} is slow: it takes {ratio:.1f} times as long for {problem}'s reference as "
                    f"{_host(fastest)}. Tables mark its speedups with ~, and other hosts run the runoffs. Check "
                    "it for other programs, processor limits (cgroups) and a throttled device"
                )
        return lines

    def has_late_marks(self, problem: str) -> bool:
        """Return whether any device is slow for this problem. If so, the problem's first verdicts may lack a mark."""
        times = [ms for found in self._references.get(problem, {}).values() for ms in found]
        return bool(times) and max(times) > self._most() * min(times)

    def marker(self, problem: str) -> Callable[[Verdict], Verdict]:
        """Return a function that marks a verdict of ``problem`` if the verdict's reference time shows a slow host.
        Otherwise, the function returns the verdict unchanged.

        The function looks up the other hosts' times once per device, because a problem may have thousands of verdicts.
        """
        most, fastest_other = self._most(), cache(partial(self._fastest_other, problem))

        def marked(verdict: Verdict) -> Verdict:
            if verdict.reference is None or verdict.slow_host is not None:
                return verdict
            fastest_ms, fastest = fastest_other(verdict.device_id)
            ratio = verdict.reference.median_ms / fastest_ms if fastest_ms else 0.0
            if ratio <= most:
                return verdict
            remark = (
                f"slow host: the reference took {ratio:.1f} times as long on {verdict.host} as on {_host(fastest)}, "
                "so this host's times are not comparable with times from other hosts"
            )
            return replace(verdict, slow_host=ratio, flags=(*verdict.flags, remark))

        return marked

    def _most(self) -> float:
        return SLOWER[next((one.kind for one in self._facts.values()), "cpu")]

    def _fastest_other(self, problem: str, device_id: str) -> tuple[float, str]:
        times = self._references.get(problem, {})
        return min(((median_low(found), one) for one, found in times.items() if one != device_id), default=(0.0, ""))


def _host(device_id: str) -> str:
    return device_id.partition("/")[0]
