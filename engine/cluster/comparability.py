"""Whether times of two hosts can be compared: their software, and how fast they run the same reference. No input or
output.

Hosts that differ still judge. Their verdicts are right, and a speedup is a ratio of two times on one host. But their
times must not stand beside those of other hosts without a mark.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from statistics import median_low

from msgspec.structs import replace

from engine.devices.fact import DeviceFact
from engine.devices.software import usual_software, versions_beside
from engine.session.records.verdict import Verdict

SLOWER = {"cpu": 1.5, "cuda": 1.15}
"""A host is slow if a problem's reference takes this many times as long there as on the fastest other host. GPUs of one
model differ by some percent, and processors share caches and power with other programs.
"""
_KEPT = 5


class Comparability:
    """The devices that judge, with their software and their times of each problem's reference."""

    def __init__(self) -> None:
        self._facts: dict[str, DeviceFact] = {}
        self._told: set[tuple[str, ...]] = set()
        self._references: dict[str, dict[str, deque[float]]] = {}
        self._slow: set[str] = set()
        self._told_slow: set[str] = set()

    # Software

    def joined(self, facts: Iterable[DeviceFact]) -> list[str]:
        """Note devices that judge. Return a line for each software that differs from the usual one and is new."""
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
                f"{fact.host} has {words}, but {have} {versions_beside(usual, fact.software) or 'not'}. Its "
                "kernels may be other machine code, so its verdicts carry a remark, and other hosts run the runoffs. "
                "For equal builds, install the same versions there"
            )
        return lines

    def left(self, device_id: str) -> None:
        self._facts.pop(device_id, None)
        self._slow.discard(device_id)

    def unlike(self, fact: DeviceFact) -> str:
        """Return the versions in which a device's host differs from most others: ``g++ 13.2.0``; "" if in none."""
        return versions_beside(fact.software, usual_software(self._facts.values()))

    # Pace

    def is_odd(self, fact: DeviceFact) -> bool:
        """Whether a device is slow or has unusual software."""
        return fact.id in self._slow or bool(self.unlike(fact))

    def is_slow(self, device_id: str) -> bool:
        return device_id in self._slow

    def judged(self, problem: str, fact: DeviceFact, verdict: Verdict) -> tuple[Verdict, str]:
        """Note a verdict of the device ``fact``. Return the verdict with its marks, and a line for the log or ""."""
        if words := self.unlike(fact):
            remark = f"built with other software than most hosts have: {words}"
            verdict = replace(verdict, flags=(*verdict.flags, remark))
        if verdict.reference is None:
            return verdict, ""
        times = self._references.setdefault(problem, {}).setdefault(fact.id, deque(maxlen=_KEPT))
        times.append(verdict.reference.median_ms)
        marked = self.marked(problem, verdict)
        line = ""
        if marked.slow_host is not None and fact.id not in self._told_slow:
            self._told_slow.add(fact.id)
            fastest = self._host(self._fastest_other(problem, fact.id)[1])
            line = (
                f"{fact.host} is slow: {problem}'s reference takes {marked.slow_host:.1f} times as long there as on "
                f"{fastest}. Its speedups carry ~, and other hosts run the runoffs. Look there for other programs, "
                "processor limits (cgroups) and a throttled device"
            )
        if median_low(times) > self._most() * (self._fastest_other(problem, fact.id)[0] or float("inf")):
            self._slow.add(fact.id)
        else:
            self._slow.discard(fact.id)
        return marked, line

    def has_late_marks(self, problem: str) -> bool:
        """Whether some device is slow for this problem, so that its first verdicts may lack their mark."""
        times = [ms for found in self._references.get(problem, {}).values() for ms in found]
        return bool(times) and max(times) > self._most() * min(times)

    def marked(self, problem: str, verdict: Verdict) -> Verdict:
        """Return a verdict with the mark of a slow host, if its reference took too long; else the verdict itself."""
        if verdict.reference is None or verdict.slow_host is not None:
            return verdict
        fastest_ms, fastest = self._fastest_other(problem, verdict.device_id)
        ratio = verdict.reference.median_ms / fastest_ms if fastest_ms else 0.0
        if ratio <= self._most():
            return verdict
        remark = (
            f"slow host: the reference took {ratio:.1f} times as long on {verdict.host} as on {self._host(fastest)}, "
            "so its times do not compare with those of other hosts"
        )
        return replace(verdict, slow_host=ratio, flags=(*verdict.flags, remark))

    def _most(self) -> float:
        return SLOWER[next((one.kind for one in self._facts.values()), "cpu")]

    def _fastest_other(self, problem: str, device_id: str) -> tuple[float, str]:
        times = self._references.get(problem, {})
        return min(((median_low(found), one) for one, found in times.items() if one != device_id), default=(0.0, ""))

    def _host(self, device_id: str) -> str:
        return device_id.partition("/")[0]
