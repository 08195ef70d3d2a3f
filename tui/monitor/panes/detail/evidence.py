"""Evidence tab: a verdict with its checks, times, SOL, build report and output."""

from __future__ import annotations

from rich.style import Style
from textual.strip import Strip

from engine.config.tolerance import tolerance_words
from engine.session.records.counters import counters_in_words
from engine.session.records.other_sizes import sizes_in_words
from engine.session.records.speedup_text import WHY_ABOVE_SOL, is_above_sol
from engine.session.records.verdict import BuildReport, Timing, Verdict
from engine.session.records.verdict_text import (
    counted_pairs,
    disturbance,
    is_disturbed,
    kernelbench_words,
    precision_words,
    speedup_words,
)
from engine.session.state.session_state import VariantState
from tui.monitor.panes.detail.text import field, heading, printed, wrapped
from tui.monitor.panes.lines import line
from tui.monitor.theme.palette import Palette
from tui.text import format as fmt
from tui.text.certainty import over_compile_words, remarks_of, sol_words
from tui.text.glyphs import GLYPHS, stage_words_with_reason, standing_of
from tui.text.machine_code import launch_words, occupancies
from tui.text.sanitize import one_line
from tui.view.model import Model
from tui.view.results import is_for_searched_sizes_only

REASON_LINES = 200
"""Maximum number of lines for a verdict's reason. The build log and the output follow below."""


def evidence_lines(model: Model, variant: VariantState, palette: Palette, width: int) -> list[Strip]:
    verdict = variant.verdict
    if verdict is None:
        words = stage_words_with_reason(model.state, variant)
        note = [field("note", one_line(variant.note), palette)] if variant.note else []
        return [line((f"{variant.id} has no verdict: {words}", palette.dim)), *note]
    standing = standing_of(model.state, variant)
    whole = model.shown_whole_by(variant.id)
    lines = [
        line(
            (f"{variant.id} ", palette.bold),
            (verdict.status.replace("_", " "), palette.named(GLYPHS[standing].style)),
            (f"  {verdict.pattern}" if verdict.pattern else "", palette.warn),
            ("  correct only at the searched sizes" if is_for_searched_sizes_only(variant) else "", palette.warn),
            ("  pruned" if standing == "pruned" else "", palette.dim),
        )
    ]
    if verdict.reason:
        lines += wrapped(verdict.reason, palette.text, width, most=REASON_LINES, whole=whole)
    if verdict.speedup is not None or verdict.status == "wrong":
        lines.append(field("tolerance", tolerance_words(model.limits.tolerance), palette))
    lines += _by_kernelbench(verdict, palette)
    lines += _speed(model, variant, verdict, palette)
    lines += _at_sizes(variant, palette, width)
    lines += _checks(verdict, palette, width)
    if verdict.build is not None:
        lines += _build(verdict.build, palette, width, whole)
        lines += _occupancy(model, variant, verdict, verdict.build, palette)
    lines += _counters(variant, palette, width)
    if verdict.output_tail:
        lines += [
            *heading("output", palette),
            *printed(verdict.output_tail, lambda _: palette.text, width, whole),
        ]
    if verdict.stage_s:
        spent = "  ".join(f"{stage} {seconds:.2f}s" for stage, seconds in verdict.stage_s.items())
        lines += [*heading("time spent on this verdict", palette), line((spent, palette.text))]
    if verdict.device or verdict.sandbox:
        run = f"sandbox: {verdict.sandbox}" if verdict.sandbox else "not run"
        where = f" of {one_line(verdict.host, 40)}" if verdict.host else ""
        lines.append(line((f"on {verdict.device}{where}  {run}", palette.dim)))
    return lines


def _by_kernelbench(verdict: Verdict, palette: Palette) -> list[Strip]:
    """Return KernelBench's verdict, in a warning color if it contradicts the judge's."""
    theirs = verdict.kernelbench
    if theirs is None:
        return []
    contradicts = theirs.status in ("correct", "wrong") and (theirs.status == "correct") != verdict.correct
    return [field("KernelBench", one_line(kernelbench_words(theirs)), palette, palette.warn if contradicts else None)]


def _speed(model: Model, variant: VariantState, verdict: Verdict, palette: Palette) -> list[Strip]:
    if verdict.speedup is None and verdict.kernel is None:
        return []
    lines = heading("speed", palette)
    if verdict.speedup is not None:
        interval = ""
        if verdict.speedup_low is not None and verdict.speedup_high is not None:
            interval = f"  95% within {verdict.speedup_low:.3f} to {verdict.speedup_high:.3f}"
        pairs = f", {counted_pairs(verdict)} pairs" if verdict.pairs else ""
        lines.append(field("over eager", f"{speedup_words(verdict)}{interval}{pairs}", palette, palette.best))
    problem = model.state.problems.get(variant.problem)
    if problem is not None and verdict.speedup is not None:
        ahead = over_compile_words(problem, variant)
        compiled = problem.baselines.get("compile")
        missing = f"failed: {compiled.failure}" if compiled and compiled.failure else model.without_compile(problem)
        lines.append(field("over compile", ahead if ahead is not None else missing, palette))
        if compiled is not None and is_disturbed(compiled):
            lines.append(field("remark", f"torch.compile was {disturbance(compiled)}", palette, palette.warn))
    for name, timing in (("kernel", verdict.kernel), ("reference", verdict.reference)):
        if timing is not None:
            lines.append(field(name, _timing(timing), palette))
    if (sol := sol_words(verdict)) is not None:
        lines.append(field("% SOL", sol, palette))
        if is_above_sol(verdict.sol_share):
            lines.append(field("", WHY_ABOVE_SOL, palette))
    elif verdict.sol_ms is not None:
        lines.append(field("SOL", f"{fmt.milliseconds(verdict.sol_ms)} ms", palette))
    if verdict.max_abs_error is not None or verdict.max_rel_error is not None:
        errors = (("abs", verdict.max_abs_error), ("rel", verdict.max_rel_error))
        shown = "  ".join(f"{name} {value:.2e}" for name, value in errors if value is not None)
        lines.append(field("max error", shown, palette))
    if verdict.precision:
        lines.append(field("precision", precision_words(verdict), palette))
    lines += [field("remark", flag, palette, palette.warn) for flag in remarks_of(verdict)]
    return lines


def _at_sizes(variant: VariantState, palette: Palette, width: int) -> list[Strip]:
    """Return the kernel's correctness and speed at other sizes."""
    checked = variant.at_sizes
    if checked is None:
        return []
    lines = heading("at other sizes", palette)
    lines += wrapped(checked.note or sizes_in_words(checked.results), palette.text, width)
    for one in checked.results:
        won = one.speedup is not None and one.speedup > 1.0
        figures = f"{one.speedup_words}, {fmt.milliseconds(one.kernel_ms)} ms" if one.speedup is not None else ""
        words = figures or one_line(one.reason if one.unfit else f"{one.outcome}: {one.reason}")
        lines.append(
            field(one.label or "sizes", f"{one.shapes}  {words}", palette, palette.good if won else palette.warn)
        )
    return lines


def _timing(timing: Timing) -> str:
    return (
        f"{fmt.milliseconds(timing.median_ms)} ms  p10 {fmt.milliseconds(timing.p10_ms)}  "
        f"p90 {fmt.milliseconds(timing.p90_ms)}  {timing.count} calls"
    )


def _checks(verdict: Verdict, palette: Palette, width: int) -> list[Strip]:
    if not verdict.checks:
        return []
    passed = sum(check.passed for check in verdict.checks)
    lines = heading(f"checks, {passed} of {len(verdict.checks)} passed", palette)
    for check in sorted(verdict.checks, key=lambda check: check.passed):
        style = palette.good if check.passed else palette.bad
        lines.append(
            line(
                ("pass " if check.passed else "FAIL ", style),
                (fmt.pad(check.name, min(28, max(12, width // 3))), palette.text),
                (f" {check.detail}", palette.dim if check.passed else palette.text),
            )
        )
    return lines


def _build(build: BuildReport, palette: Palette, width: int, whole: str) -> list[Strip]:
    lines = heading("build", palette)
    words = "ok" if build.ok else "failed"
    took = ", from the cache" if build.cached else f" in {build.seconds:.2f} s"
    lines.append(field("result", words + took, palette, None if build.ok else palette.bad))
    figures = (("registers", build.registers), ("spills", build.spill_bytes), ("shared memory", build.shared_bytes))
    known = "  ".join(
        f"{name} {value}{'' if name == 'registers' else ' B'}" for name, value in figures if value is not None
    )
    if known:
        lines.append(field("resources", known, palette, palette.warn if build.spill_bytes else None))
    if build.instructions:
        lines += _instructions(build.instructions, palette)
    if build.command:
        lines.append(field("command", build.command, palette))
    return lines + printed(build.log, lambda text: _log_style(text, palette), width, whole)


def _instructions(counts: dict[str, int], palette: Palette) -> list[Strip]:
    """Return the instruction counts, most frequent kinds first. A loop's instructions count once, not per iteration."""
    kinds = sorted((item for item in counts.items() if item[0] != "instructions"), key=lambda item: -item[1])
    lines = [field("instructions", f"{counts.get('instructions', 0):,}, including", palette)]
    return lines + [field("", f"{count:>6,} {kind}", palette) for kind, count in kinds]


def _counters(variant: VariantState, palette: Palette, width: int) -> list[Strip]:
    """Return the hardware counters of the kernel's launches, longest launch first."""
    profile = variant.profile
    if profile is None:
        return []
    lines = heading("hardware counters", palette)
    lines.append(field("bottleneck", profile.bottleneck or "unknown", palette, palette.best))
    for one in sorted(profile.launches, key=lambda launch: -launch.us):
        said = f"{one_line(one.kernel, 80)}, {one.us:,.1f} us: {counters_in_words([one])}"
        lines += wrapped(said, palette.text, width, most=REASON_LINES, whole="")
    if profile.report:
        lines.append(field("report", f"{profile.report}, for Nsight Compute", palette))
    return lines


def _occupancy(
    model: Model, variant: VariantState, verdict: Verdict, build: BuildReport, palette: Palette
) -> list[Strip]:
    """Return the recorded launches. If there are none, return the occupancy for the block sizes in the source."""
    if verdict.launches:
        return [field("launch", launch_words(one), palette) for one in dict.fromkeys(verdict.launches)]
    archs = [device.arch for device in model.state.devices.values() if device.kind == "cuda"]
    if build.registers is None or not archs:
        return []
    words = occupancies(archs[0], build.registers, build.shared_bytes or 0, model.source.text(variant.source))
    lines = [field("occupancy", one, palette) for one in words]
    return [*lines, field("machine code", "see the ASM tab", palette)]


def _log_style(text: str, palette: Palette) -> Style:
    if "error" in text:
        return palette.bad
    return palette.warn if "warning" in text else palette.dim
