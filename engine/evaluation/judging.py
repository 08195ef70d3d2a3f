"""One judgement of a kernel: is it right on fresh inputs, and how fast beside the reference.

The kernel runs in a :class:`~engine.evaluation.sandbox.Runner`; reference, inputs, expected outputs and the clock that
counts stay here. What each check is for: ``docs/judge.md``; how many judgements make a verdict: ``verdicts.py``.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median

import torch
from msgspec.structs import replace

from engine.evaluation import checks, timing
from engine.evaluation.allowances import limits_of
from engine.evaluation.answers import Answers, check_writes
from engine.evaluation.arena import Slot
from engine.evaluation.clock import Clock
from engine.evaluation.control import Control
from engine.evaluation.kernelbench import SecondOpinion
from engine.evaluation.libraries import CHECK, Libraries
from engine.evaluation.module_runner import copies_after_the_clock_ms, runner_for
from engine.evaluation.neighbours import Neighbours
from engine.evaluation.opened import OpenedProblem
from engine.evaluation.outside import Outside, confirm
from engine.evaluation.patterns import PROPERTY
from engine.evaluation.precision import MOST_TIMED, Precision, TimedCall
from engine.evaluation.rejected import STATUS_OF_END, Rejected
from engine.evaluation.reservoir import Reservoir
from engine.evaluation.rows import after_kernel
from engine.evaluation.sandbox import Runner, RunnerEnded
from engine.evaluation.speed import counted, timed
from engine.evaluation.timing import Pairs
from engine.events import Stage
from engine.verdict import BUSY, BuildReport, Check, Verdict

LEAST_PAIRS = 8
LEAST_PAIRS_FAR = 6
"""For a kernel at less than half the reference's speed, whose exact place nobody asks for."""
_FAR = 0.5
_LOOKS = 32
"""After so many pairs the statistics, which cost more the more there are, are looked at once in as many."""
_MOST_BETWEEN_S = 0.3
"""No other trial that is due between the pairs is begun after so many seconds of them."""
_MOST_OTHERS_BYTES = {"cpu": 64 << 20, "cuda": 2 << 30}
_PROBE_ONE_IN = 8
"""After so many timed pairs on average comes a trial of any kind, so that no kernel knows that only timing is left."""
_RAISED_ONE_IN = 3
"""In so many pairs on average a few elements are large: often enough, and not often enough to decide a median."""
_NONE_LARGE = "none with large elements: the model has no use for them, rounds them too much or is asked too slowly"
SLOWS = "slows the reference"
_SLOWED, _SLOWED_MS = 1.25, 0.1
"""The reference beside a kernel against the reference alone: more than this share and this time is no noise. A few
microseconds are lost to the change from one process to the other."""
_ALONE_CALLS = 7
_ANEW, _LEAST_ANEW, _ANEW_S = 24, 16, 6.0
"""Pairs that are taken anew where a clock is in doubt; so many at least, eight of either order, whatever they take."""
_GROSS, _GROSS_MS = 8.0, 100.0
"""Calls that take so many times what their clock says, and so much longer, are nothing that another program does to
most of them: none is taken anew."""
_MOST_WAIT_S = 0.05
_FOR_TRIALS = 4
"""So many slots the first trials are made on: each comes again with other inputs, for who answers by address. Later
trials are made on any, so that a slot does not tell them from timed calls."""


class Judgement:
    """Its steps; ``_checks`` collects the evidence as they pass."""

    def __init__(self, opened: OpenedProblem, on_stage: Callable[[Stage], None], cancelled: Callable[[], bool]) -> None:
        self._opened, self._problem, self._settings = opened, opened.judged, opened.settings
        self._floor_ms, self._eager_ms = opened.floor_ms, opened.eager_ms
        self._on_stage, self._cancelled = on_stage, cancelled
        self._checks: list[Check] = []
        self._stage_s: dict[str, float] = {}
        self._answers = Answers(checks.Tolerances(self._settings.tolerance_fp32, self._settings.tolerance_other))
        self._calls = 0
        self._runs_ms = 0.0
        self._raised = 0
        self._between_s = 0.0
        """What trials between the pairs have taken."""
        self._precision = Precision("")
        self._timed_calls = Reservoir[TimedCall](MOST_TIMED)
        self._between_ms = 0.0
        self._answered_at_s: float | None = None
        self._reference_first = True
        self._others = 0.0
        self._empty_kernel, self._control = opened.empty_kernel, Control()
        self._slots = len(opened.judged.arena.slots)
        self.pairs = Pairs.none()

    @property
    def disturbed(self) -> bool:
        """Whether other programs may have had a hand in the verdict. On a GPU nobody can tell."""
        return self._settings.kind == "cuda" or self._others > BUSY

    def judge(self, library: Path, build: BuildReport) -> Verdict:
        verdict = Verdict(status="error", device=self._settings.device_name, build=build, floor_ms=self._floor_ms)
        runner: Runner | None = None
        theirs = SecondOpinion(self._opened.kernelbench, library.suffix == ".py", self._cancelled)
        try:
            self._on_stage("checking")
            started = time.perf_counter()
            module = library.suffix == ".py"
            libraries = Libraries(library, self._settings.libraries == "refuse")
            libraries.look_at_files()
            with (
                runner_for(
                    library,
                    self._settings,
                    limits_of(self._problem.spec, self._settings, self._eager_ms, module),
                    self._cancelled,
                ) as runner,
                theirs.before_the_end_of(runner, lambda: self._calls),
            ):
                for slot in self._problem.arena.slots:
                    slot.forget()
                libraries.before(runner)
                loaded = runner.load(library, self._problem)
                if loaded.keeps_weights:
                    self._problem = self._problem.with_own_weights()
                self._pass("loads", loaded.detail)
                self._stage_s["start"] = time.perf_counter() - started
                with self._stage("check"):
                    for index in range(self._settings.trials):
                        self._trial(runner, index, index % min(_FOR_TRIALS, self._slots))
                    libraries.look_at_operators(runner, self._problem)
                    libraries.look_at_process(runner)
                    weights = "the same weights" if loaded.keeps_weights else "changed weights"
                    self._pass("right on fresh inputs", f"{self._settings.trials} trials, {weights}, two poisons")
                self._on_stage("timing")
                with self._stage("timing"):
                    self._time_and_confirm(runner, module)
                    self._confirm_precision()
                    libraries.look_at_process(runner)
                    self._pass(CHECK, "; ".join(libraries.flags) or "none found")
            self._confirm_reference()
            precision = self._precision
            verdict = replace(
                timed(verdict, self._settings.kind, self.pairs),
                flags=(*self._remarks(), *libraries.flags),
                precision=precision.name,
                fp64_error=precision.error if precision.name else None,
                eager_fp64_error=precision.eager_error if precision.name else None,
            )
        except RunnerEnded as ended:
            self._fail(str(ended))
            verdict = replace(verdict, status=STATUS_OF_END[ended.end], reason=str(ended))
        except torch.OutOfMemoryError:
            self._fail("the device ran out of memory")
            verdict = replace(
                verdict, status="memory", reason="the device ran out of memory while the kernel was loaded"
            )
        except Rejected as rejected:
            self._fail(rejected.reason, rejected.check)
            verdict = replace(verdict, status=rejected.status, pattern=rejected.pattern, reason=rejected.reason)
        errors = self._answers.errors
        return replace(
            verdict,
            checks=tuple(self._checks),
            stage_s={**self._stage_s, "kernelbench": theirs.seconds, "runs": self._runs_ms / 1e3 + theirs.runs_s},
            kernelbench=theirs.verdict(self.pairs if self.pairs.kernel_ms else None),
            sandbox=runner.sandbox if runner is not None else "",
            output_tail=runner.output_tail if runner is not None else "",
            max_abs_error=errors[0] if errors is not None else None,
            max_rel_error=errors[1] if errors is not None else None,
        )

    # Correctness

    def _trial(self, runner: Runner, index: int, place: int | None = None) -> None:
        """One call on inputs that this process has not seen, everything checked; ``place``: its slot, else any."""
        trial = self._problem.trial(index)
        place = secrets.randbelow(self._slots) if place is None else place
        slot = self._slot(place)
        trial.load(slot)
        slot.poison(index % 2)
        self._problem.device.synchronize()
        others = self._others_of(slot) if self._calls == 0 else []  # they hold poison still
        before = checks.checksum(others)
        self._call(runner, place, trial.seed)
        check_writes(slot)
        if checks.checksum(others) != before:
            raise Rejected("out_of_bounds", "writes out of bounds", "wrote into the buffers of other calls")
        if (name := trial.unchanged(slot)) is not None:
            raise Rejected("wrong", "writes its inputs", f"wrote into its input {name}")
        where = f"trial {index} ({trial.kind} inputs)"
        exact, as_drawn = partial(self._problem.trial_in_double, trial, slot), trial.kind == "drawn"
        self._answers.check(self._problem, slot, trial.expected, index % 2, where, exact, as_drawn=as_drawn)

    def _others_of(self, slot: Slot) -> list[torch.Tensor]:
        """What a call on ``slot`` must leave alone, where it is not too much to look at."""
        others = [tensor for one in self._problem.arena.slots if one is not slot for tensor in one.tensors]
        return others if sum(tensor.nbytes for tensor in others) <= _MOST_OTHERS_BYTES[self._settings.kind] else []

    def _measure_precision(self, runner: Runner) -> None:
        found = self._opened.gauge(self._problem).measure(lambda index: self._call(runner, index))
        if found.dodges:
            raise Rejected("cheating", PROPERTY, found.dodges, "precision")
        if self._settings.precision == "fp32" and not found.sufficient:
            raise Rejected("wrong", "lower precision", f'{found.words}; evaluation.precision = "fp32"', "precision")
        self._precision = found

    def _confirm_precision(self) -> None:
        """Timed calls must be as exact as the probes were, where fp32 is asked for; else they say what it is called."""
        gauge, found, calls = self._opened.gauge(self._problem), self._precision, self._timed_calls.kept()
        below = gauge.below_probes(calls, found) if found.name else None
        if below is not None and self._settings.precision == "fp32":
            reason = f"in timed calls {below.words}; in the probes between them {found.words}"
            raise Rejected("cheating", "less exact when timed", reason, "precision")
        self._precision = below or found
        self._pass("precision", f"{self._precision.words}{', by timed calls' if below is not None else ''}")

    # Timing

    def _time_and_confirm(self, runner: Runner, module: bool) -> None:
        neighbours = Neighbours(runner.pid, self._empty_kernel.pid)
        self._check_processes(runner, module)
        try:
            copies_ms = copies_after_the_clock_ms(self._problem, runner) if module else None
            warm, least_ms = module and self._opened.runs_cold, self._problem.device.least_ms()
            clock = Clock(self._settings, neighbours, self._control, copies_ms, warm=warm, least_ms=least_ms)
            self._time(runner, lambda: clock.busy)
            self._confirm_clock(runner, clock)
            self._trial(runner, 0, 0)
            self._pass("right after timing", f"call {self._calls}")
            self._check_processes(runner, module)
        finally:  # while the runner lives: what it used is not theirs
            self._others = neighbours.share()

    def _check_processes(self, runner: Runner, module: bool) -> None:
        """A module that compiles when it is called may start processes; none of them may live while it is timed."""
        if module and (found := runner.others_started()):
            raise Rejected("cheating", "keeps processes running", f"started {', '.join(found)[:200]}", "processes")

    def _time(self, runner: Runner, busy: Callable[[], bool]) -> None:
        """Alternating pairs until the ratio is settled or the time for it is spent. ``busy``: with other programs."""
        pairs, due = self.pairs, self._between_pairs()
        started, checked_inputs = time.perf_counter(), 0
        while len(pairs.kernel_ms) < self._settings.max_pairs:
            index = len(pairs.kernel_ms)
            checked_inputs += self._pair_perhaps_trial(runner)
            for between in due.get(index, ()):
                between(runner)
            looks = index < _LOOKS or index % _LOOKS == 0
            if looks and index + 1 >= LEAST_PAIRS_FAR and self._is_enough(time.perf_counter() - started, busy):
                break
        detail = f"{len(pairs.kernel_ms)} pairs, outputs of all compared, inputs of {checked_inputs} compared, "
        detail += f"{self._raised} with a few large elements" if self._problem.may_be_large else _NONE_LARGE
        if self._answers.nearer:
            detail += f"; {self._answers.nearer} answers so far differ from eager's, and are as near to fp64"
        self._pass("right while timed", detail)

    def _between_pairs(self) -> dict[int, list[Callable[[Runner], None]]]:
        """What comes after which pair, drawn by lot: the probes of precision, and trials of two kinds of inputs that
        are not as drawn. Who is right, or exact, only while it is not timed is found out by one of them."""
        asked: list[Callable[[Runner], None]] = [self._measure_precision]
        asked += [partial(self._trial_if_short, index=index) for index in self._problem.telling_trials()]
        due: dict[int, list[Callable[[Runner], None]]] = {}
        for one in asked:
            due.setdefault(secrets.randbelow(min(LEAST_PAIRS_FAR, self._settings.max_pairs)), []).append(one)
        return due

    def _trial_if_short(self, runner: Runner, index: int) -> None:
        if self._between_s < _MOST_BETWEEN_S:
            started = time.perf_counter()
            self._trial(runner, index)
            self._between_s += time.perf_counter() - started

    def _pair_perhaps_trial(self, runner: Runner) -> bool:
        """A pair, now and then with a trial of any kind after it; whether inputs were compared."""
        compared = self._pair(runner, len(self.pairs.kernel_ms))
        if secrets.randbelow(_PROBE_ONE_IN) == 0:
            self._trial(runner, secrets.randbelow(self._settings.trials))
        return compared

    def _pair(self, runner: Runner, index: int, may_raise: bool = True) -> bool:
        """Reference and kernel once each on the same buffers, in either order; whether inputs were compared.

        Neither the order nor the buffers tell the kernel which of its calls this is. ``may_raise``: some elements may
        be large.
        """
        slot_index = secrets.randbelow(self._slots)
        slot = self._slot(slot_index)
        if index % 2 == 0:
            self._reference_first = bool(secrets.randbelow(2))
        else:  # as often one as the other
            self._reference_first = not self._reference_first
        self._problem.bind(slot)
        # The same mixture when it is loaded twice, for a model that writes its buffers.
        mixture, seed = self._problem.fresh_seed(), self._problem.call_seed()
        raised = may_raise and self._problem.may_be_large and secrets.randbelow(_RAISED_ONE_IN) == 0

        def reference() -> tuple[float, list[torch.Tensor]]:
            took, outputs = self._reference(slot, seed)
            # What the model returns may be the very buffer that it writes.
            kept = [tensor.clone() for tensor in outputs] if self._problem.mutates else outputs
            return took, kept + [tensor.clone() for tensor in slot.results[len(slot.outputs) :]]

        def load() -> None:
            self._opened.load_timed(self._problem, index, slot, mixture)
            if raised:
                self._problem.raise_some(slot, mixture)
            self._problem.device.synchronize()

        def kernel() -> tuple[float, float, float]:
            slot.poison(index % 2)
            before = checks.checksum(kept)
            took = self._call(runner, slot_index, seed)
            self.pairs.between_ms.append(self._between_ms)
            check_writes(slot)
            if checks.checksum(kept) != before:
                raise Rejected("wrong", "writes its inputs", "wrote into its inputs while timed")
            return took

        load()
        looks = self._settings.kind == "cuda" or secrets.randbelow(4) == 0
        kept = slot.unwritable if looks else [t for t in slot.unwritable if any(t is one for one in slot.weights)]
        if self._reference_first:
            reference_ms, expected = reference()
            if self._problem.mutates:
                load()
            kernel_ms, wall_ms, used_ms = kernel()
        else:
            kernel_ms, wall_ms, used_ms = kernel()
            reference_ms, expected = after_kernel(slot, load, reference)
        where = f"timed call {index}, a few elements large" if raised else f"timed call {index}"
        try:
            exact = partial(self._problem.in_double, slot, load)
            self._answers.check(self._problem, slot, expected, index % 2, where, exact, as_drawn=not raised)
        except Rejected as rejected:
            if raised and rejected.pattern == PROPERTY:  # if it is wrong on others as well, that is what it is called
                self._pair(runner, index, may_raise=False)
            raise
        if not raised and (gauge := self._opened.gauge(self._problem)).most_timed:
            self._timed_calls.offer(lambda: gauge.answered(slot, load))
        self._raised += raised
        self.pairs.kernel_ms.append(kernel_ms)
        self.pairs.wall_ms.append(wall_ms)
        self.pairs.used_ms.append(used_ms)
        self.pairs.reference_ms.append(reference_ms)
        self.pairs.reference_first.append(self._reference_first)
        self._empty_kernel.call(self._control)
        return looks

    def _reference(self, slot: Slot, seed: int | None) -> tuple[float, list[torch.Tensor]]:
        """Its milliseconds and outputs on the slot's inputs, seeded outside of its time as a kernel is.

        While the kernel had the processor, PyTorch's launches went cold: a few milliseconds' worth of them are made
        once before, and so are a module's.
        """
        if self._opened.runs_cold:
            self._problem.run(slot)
        if seed is not None:
            torch.manual_seed(seed)
        outputs: list[list[torch.Tensor]] = []
        took = self._problem.device.time_ms(lambda: outputs.append(self._problem.run(slot)))
        self._runs_ms += took
        return took, outputs[0]

    def _is_enough(self, elapsed_s: float, busy: Callable[[], bool]) -> bool:
        pairs, ratios, effort = self.pairs, self._counted().ratios, timing.QUICK
        if self._settings.thorough:
            disturbed = len(ratios) < len(pairs.kernel_ms) / 2
            effort = timing.THOROUGH_BUSY if disturbed or busy() else timing.THOROUGH
        if median(ratios) < _FAR and timing.median_interval(ratios)[2] < 1.0 and not self._settings.thorough:
            return True
        if len(ratios) < LEAST_PAIRS:
            return False
        if elapsed_s >= effort.least_s and timing.is_settled(ratios, effort.half_width, LEAST_PAIRS):
            return True
        runs_s = (sum(pairs.kernel_ms) + sum(pairs.reference_ms)) / 1e3
        return elapsed_s - runs_s > effort.overhead_s or runs_s > effort.runs_s or self._cancelled()

    def _confirm_clock(self, runner: Runner, clock: Clock) -> None:
        """The runner's clock is its own: neither single calls nor many in a row may take longer than it says."""
        try:
            self._check_single_calls(clock)
        except Rejected:
            claimed_ms, wall_ms = median(self.pairs.kernel_ms), median(self.pairs.wall_ms)
            if wall_ms > _GROSS * claimed_ms + _GROSS_MS:
                raise
            self._take_anew(runner)
            self._check_single_calls(clock)
        pairs = self.pairs
        check = partial(self._answers.check, self._problem)
        outside = Outside(self._problem, runner, self._empty_kernel, check, median(pairs.reference_ms))
        try:
            found, excess_ms = confirm(clock, self._counted().kernel_ms, outside)
        finally:
            self._runs_ms += outside.runs_ms
            self._calls += outside.calls
        pairs.kernel_ms = [ms + excess_ms for ms in pairs.kernel_ms]
        self._pass("own clock agrees", found)

    def _check_single_calls(self, clock: Clock) -> None:
        """Of all pairs, and of those that count: a clock may be wrong in some calls only."""
        for pairs in (self.pairs, self._counted()):
            clock.check_processor(pairs)
            clock.check_calls(pairs.kernel_ms, pairs.wall_ms)

    def _counted(self) -> Pairs:
        return counted(self._settings.kind, self.pairs)

    def _take_anew(self, runner: Runner) -> None:
        """More pairs, some dozens, for a clock that is in doubt. Only they count from now on, so a kernel that is
        honest from here on has gained nothing by what it said before."""
        self.pairs = Pairs.none()
        self._timed_calls.clear()
        self._control.clear()
        until = time.monotonic() + _ANEW_S
        count = _ANEW + secrets.randbelow(_ANEW)  # nobody can count on it
        for index in range(min(count, max(_LEAST_ANEW, self._settings.max_pairs))):
            if index >= _LEAST_ANEW and time.monotonic() > until:
                break
            self._pair_perhaps_trial(runner)

    def _confirm_reference(self) -> None:
        """The reference must not have been slower while the kernel's process lived than it is now, without it."""
        pairs = self.pairs
        # It runs after the kernel in every second pair only.
        by_order = [
            [ms for ms, first in zip(pairs.reference_ms, pairs.reference_first, strict=True) if first is wanted]
            for wanted in (True, False)
        ]
        beside_ms = max(median(times) for times in by_order if times)
        if self._settings.kind == "cpu" or self._eager_ms is None or beside_ms <= _slowed(self._eager_ms):
            return  # on a CPU it stands still between its calls; what slows a reference there is another program
        slot, wait_s = self._slot(0), min(median(pairs.wall_ms) / 1e3, _MOST_WAIT_S)
        self._problem.bind(slot)
        times_ms = []
        for index in range(_ALONE_CALLS):  # as in the pairs, but that it waits where it called the kernel
            self._opened.load_timed(self._problem, index, slot, self._problem.fresh_seed())
            self._problem.device.synchronize()
            time.sleep(wait_s)
            times_ms.append(self._reference(slot, self._problem.call_seed())[0])
        alone_ms = median(times_ms)
        if beside_ms > _slowed(alone_ms):
            found = f"the reference took {beside_ms:.4g} ms beside this kernel and {alone_ms:.4g} ms without it"
            raise Rejected("cheating", SLOWS, found)

    def _remarks(self) -> tuple[str, ...]:
        if self._settings.kind == "cpu" and self._others > BUSY:
            return (f"other programs used {self._others:.0%} of the processor while it was timed",)
        return ()

    # Small parts

    def _slot(self, index: int) -> Slot:
        slots = self._problem.arena.slots
        return slots[index % len(slots)]

    def _call(self, runner: Runner, index: int, seed: int | None = None) -> tuple[float, float, float]:
        """One call: milliseconds by the runner's clock, by this one, and of processor time used meanwhile."""
        self._calls += 1
        called_at_s = runner.processor_s()
        if self._answered_at_s is not None:
            self._between_ms = 1e3 * (called_at_s - self._answered_at_s)
        slot = index % len(self._problem.arena.slots)
        own, wall_ms = runner.call([slot], self._problem.device.flushes, seed, warm=self._opened.warming_slot(slot))
        self._answered_at_s = runner.processor_s()
        self._runs_ms += own[0]
        return own[0], wall_ms, 1e3 * (self._answered_at_s - called_at_s)

    def _pass(self, name: str, detail: str) -> None:
        self._checks.append(Check(name, True, detail))

    def _fail(self, detail: str, name: str | None = None) -> None:
        names = ("loads", "right on fresh inputs", "right while timed", "own clock agrees", "right after timing")
        passed = {check.name for check in self._checks}
        self._checks.append(Check(name or next((one for one in names if one not in passed), names[-1]), False, detail))

    def _stage(self, name: str) -> _Stopwatch:
        return _Stopwatch(self._stage_s, name)


def _slowed(alone_ms: float) -> float:
    return _SLOWED * alone_ms + _SLOWED_MS


class _Stopwatch:
    def __init__(self, into: dict[str, float], name: str) -> None:
        self._into, self._name = into, name

    def __enter__(self) -> None:
        self._started = time.perf_counter()

    def __exit__(self, *exception: object) -> None:
        self._into[self._name] = time.perf_counter() - self._started
