"""Write a report as JSON, Markdown and a self-contained HTML page."""

from __future__ import annotations

from html import escape
from pathlib import Path

import msgspec

from tui.bench.report import Report
from tui.bench.tables import RULES, SOL_RULE, Grid, curve, facts, problems, totals

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2em auto; max-width: 90em; padding: 0 1em; color: #222; }
table { border-collapse: collapse; margin: 1em 0; font-size: 13px; }
th, td { padding: .25em .7em; text-align: left; vertical-align: top; border-bottom: 1px solid #ddd; }
td.right, th.right { text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums; }
svg { max-width: 48em; display: block; }
@media (prefers-color-scheme: dark) { body { background: #181818; color: #ddd; } th, td { border-color: #444; } }
"""
_WIDTH, _HEIGHT, _LEFT, _TOP, _BOTTOM = 720, 240, 56, 16, 40


def write_report(report: Report, directory: Path) -> list[Path]:
    """Write ``report.json``, ``report.md`` and ``report.html`` to ``directory``. Raises OSError."""
    directory.mkdir(parents=True, exist_ok=True)
    texts = {"json": as_json(report), "md": as_markdown(report), "html": as_html(report)}
    paths = []
    for ending, text in texts.items():
        path = directory / f"report.{ending}"
        path.write_text(text, encoding="utf-8")
        paths.append(path)
    return paths


def as_json(report: Report) -> str:
    return msgspec.json.format(msgspec.json.encode(report), indent=2).decode() + "\n"


def as_markdown(report: Report) -> str:
    parts = [f"# Benchmark {report.session}", *facts(report), _markdown(totals(report)), f"{RULES} {SOL_RULE}"]
    parts += ["## Problems", _markdown(problems(report))]
    if report.curve:
        parts += ["## Progress", _markdown(curve(report))]
    return "\n\n".join(parts) + "\n"


def _markdown(grid: Grid) -> str:
    rule = tuple("---:" if name in grid.right else "---" for name in grid.head)
    lines = [grid.head, rule, *grid.rows]
    return "\n".join("| " + " | ".join(" ".join(cell.split()).replace("|", "\\|") for cell in line) + " |"
                     for line in lines)  # fmt: skip


def as_html(report: Report) -> str:
    """Return an HTML page without scripts or links to other files."""
    title = escape(f"Benchmark {report.session}")
    body = [f"<h1>{title}</h1>", *(f"<p>{escape(fact)}</p>" for fact in facts(report)), _html(totals(report))]
    body += [f"<p>{escape(f'{RULES} {SOL_RULE}')}</p>", "<h2>Problems</h2>", _html(problems(report))]
    if report.curve:
        last = report.curve[-1].minutes or 1.0
        means = [(one.minutes / last, one.geomean) for one in report.curve]
        shares = [(one.minutes / last, one.fast_1 / report.count) for one in report.curve]
        body += [
            "<h2>Progress</h2>",
            _chart("geomean over eager (failures = 1)", means, last),
            _chart("fast_1 over eager", shares, last),
            _html(curve(report)),
        ]
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f"<style>{_STYLE}</style></head>\n<body>\n" + "\n".join(body) + "\n</body></html>\n"
    )


def _html(grid: Grid) -> str:
    def line(cells: tuple[str, ...], tag: str) -> str:
        pairs = zip(grid.head, cells, strict=True)
        drawn = (_cell(tag, cell, right=name in grid.right) for name, cell in pairs)
        return f"<tr>{''.join(drawn)}</tr>"

    rows = "\n".join(line(row, "td") for row in grid.rows)
    return f"<table><thead>{line(grid.head, 'th')}</thead>\n<tbody>\n{rows}\n</tbody></table>"


def _cell(tag: str, text: str, *, right: bool) -> str:
    kind = ' class="right"' if right else ""
    return f"<{tag}{kind}>{escape(text)}</{tag}>"


def _chart(title: str, points: list[tuple[float, float]], minutes: float) -> str:
    """Draw a curve as SVG, with minutes per problem on the x-axis.

    Each point consists of a fraction of ``minutes`` and a value.
    """
    top = max(1.0, *(value for _, value in points))
    wide, high = _WIDTH - _LEFT - 10, _HEIGHT - _TOP - _BOTTOM
    drawn = " ".join(f"{_LEFT + at * wide:.1f},{_TOP + high * (1 - value / top):.1f}" for at, value in points)
    base = _TOP + high
    return (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(title)}" font-size="12" '
        f'fill="currentColor"><path d="M{_LEFT} {_TOP}V{base}H{_WIDTH - 10}" fill="none" stroke="currentColor"/>'
        f'<polyline points="{drawn}" fill="none" stroke="#2a7de1" stroke-width="2"/>'
        f'<text x="{_LEFT - 6}" y="{_TOP + 10}" text-anchor="end">{top:.2f}</text>'
        f'<text x="{_LEFT - 6}" y="{base}" text-anchor="end">0</text>'
        f'<text x="{_LEFT}" y="{base + 16}">0</text>'
        f'<text x="{_WIDTH - 10}" y="{base + 16}" text-anchor="end">{minutes:.1f} minutes per problem</text>'
        f'<text x="{_LEFT + wide / 2}" y="{base + 34}" text-anchor="middle">{escape(title)}</text></svg>'
    )
