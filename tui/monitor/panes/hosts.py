"""Lines of the device pane for a cluster: the load, memory and kernels of each device or host, and the lost devices."""

from __future__ import annotations

from collections.abc import Sequence

from textual.strip import Strip

from engine.devices.fact import DeviceFact
from engine.devices.sample import DeviceSample
from engine.devices.software import usual_software, versions_beside
from tui.monitor.panes.lines import Part, line
from tui.monitor.theme.palette import Palette
from tui.text import format as fmt
from tui.text.sanitize import one_line
from tui.view.model import Model

HOST_CHARS = 12
FOLDED_FROM = 9
"""Minimum number of devices at which all devices of a host share one line."""
_AT_WORK = ("checking", "timing")


def host_lines(model: Model, palette: Palette) -> list[Strip]:
    """Return a line per device model, then lost devices, then a line per device or, with many devices, per host."""
    facts = [fact for fact in model.state.devices.values() if fact.host]
    reading = model.latest()
    samples = {sample.device: sample for sample in reading.samples} if reading is not None else {}
    gone = model.state.gone
    lines = []
    for name in dict.fromkeys(fact.name for fact in facts):
        lines += _of_model(name, [fact for fact in facts if fact.name == name], samples, model, palette)
    lost = [fact for fact in facts if fact.id in gone]
    lines[1:1] = [_lost(fact, gone[fact.id], palette) for fact in lost]
    return lines


def _of_model(
    name: str, facts: Sequence[DeviceFact], samples: dict[str, DeviceSample], model: Model, palette: Palette
) -> list[Strip]:
    there = [fact for fact in facts if fact.id not in model.state.gone]
    lost = len(facts) - len(there)
    parts: list[Part] = [(f"{len(there)} x {one_line(name.removeprefix('NVIDIA '), 30)}", palette.bold)]
    if (load := _mean([samples[fact.id].utilization for fact in there if fact.id in samples])) is not None:
        parts.append((f"  {load:.0f}%", palette.running))
    if lost:
        parts.append((f"  {lost} lost", palette.alarm))
    hosts: dict[str, list[DeviceFact]] = {}
    for fact in sorted(there, key=lambda one: one.host):
        hosts.setdefault(fact.host, []).append(fact)
    lines = [line(*parts)]
    for host, devices in hosts.items():
        groups = [devices] if len(there) >= FOLDED_FROM else [[fact] for fact in devices]
        for number, group in enumerate(groups):
            label = one_line(host, HOST_CHARS) if len(groups) == 1 else f"{one_line(host, HOST_CHARS - 2)}:{number}"
            lines.append(_devices(label, group, samples, model, palette))
    return lines


def _devices(
    label: str, group: Sequence[DeviceFact], samples: dict[str, DeviceSample], model: Model, palette: Palette
) -> Strip:
    """Return the line of one device, or of all devices of a host, with the most important figures first."""
    ids = {fact.id for fact in group}
    found = [samples[fact.id] for fact in group if fact.id in samples]
    flight = [] if model.link.kind == "ended" or model.state.at_rest else model.state.at_work()
    busy = [one for one in flight if one.device in ids and one.stage in _AT_WORK]
    parts: list[Part] = [(f"{label:<{HOST_CHARS}} ", palette.bold)]
    load = _mean([sample.utilization for sample in found])
    parts.append((f"{load:>3.0f}% " if load is not None else "  -  ", palette.running))
    if len(group) > 1:
        parts.append((f"{len(group)} devices, {len(busy)} in use  ", palette.text))
    elif any(fact_id in model.state.waits for fact_id in ids):
        parts.append((f"{'in use by others':<18}", palette.warn))
    elif busy:
        since = fmt.clock(model.clock() - busy[0].stage_since)
        parts.append((f"{f'{busy[0].id} {busy[0].stage} {since}':<18}", palette.accent))
    else:
        parts.append((f"{'idle':<18}" if found else f"{'no reading':<18}", palette.dim))
    used = sum(sample.memory_used or 0 for sample in found)
    if total := sum(sample.memory_total or 0 for sample in found):
        parts.append((f"{fmt.size(used)}/{fmt.size(total)}", palette.text))
    if power := sum(sample.power_w or 0 for sample in found):
        parts.append((f"  {power:.0f} W", palette.text))
    if (hottest := max((sample.temperature_c or 0 for sample in found), default=0)) > 0:
        parts.append((f"  {hottest:.0f} °C", palette.text))
    if throttled := sorted({reason for sample in found for reason in sample.throttle}):
        parts.append((f"  throttled: {', '.join(throttled)}", palette.alarm))
    usual = usual_software(fact for name, fact in model.state.devices.items() if name not in model.state.gone)
    if unusual := ", ".join(dict.fromkeys(filter(None, (versions_beside(fact.software, usual) for fact in group)))):
        parts.append((f"  {one_line(unusual, 60)}", palette.warn))
    return line(*parts)


def _lost(fact: DeviceFact, reason: str, palette: Palette) -> Strip:
    why = one_line(reason.removeprefix(f"{fact.host}: ").partition(";")[0], 120)
    return line((f"{one_line(fact.host, HOST_CHARS):<{HOST_CHARS}} ", palette.bold), (f"lost: {why}", palette.alarm))


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
