"""Briefly describe how a kernel differs from its parent: ``accumulators 1 -> 2``, ``+ vector loads``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from engine.proposers.playbook.base import Choice, Choices

_TOGETHER: Mapping[str, tuple[str, ...]] = {
    "tile": ("bm", "bn"),
    "tile per thread": ("tm", "tn"),
    "warps per block": ("wm", "wn"),
}
"""Choices that a summary combines into one size, such as ``tile 64x64 -> 128x64``."""
_FLAGS: Mapping[tuple[str, Choice], str] = {
    ("backward", True): "backward output",
    ("fused", True): "fused passes",
    ("pack_a", True): "packed left operand",
    ("pack_b", True): "packed right operand",
    ("parallel", True): "threads",
    ("parallel", "columns"): "threads over columns",
    ("parallel", "rows"): "threads over rows",
    ("persistent", True): "persistent grid",
    ("prefetch", True): "prefetching",
    ("read", "stream"): "streaming loads",
    ("store", "stream"): "streaming stores",
    ("stores", "stream"): "streaming stores",
    ("vector", True): "vector loads",
}
"""Choice values that a summary writes as switched on or off, such as ``+ packed left operand``."""
_LABELS: Mapping[str, str] = {
    "arithmetic": "",
    "bk": "tile depth",
    "copy": "copies",
    "divide": "",
    "exp_degree": "degree of exp",
    "group": "tiles per group",
    "group_rows": "rows per launch",
    "keep": "kept pieces",
    "math": "",
    "merge": "block reduction",
    "order": "",
    "per": "packs per thread",
    "prefetch": "prefetch distance",
    "reuse": "costly values",
    "slot_kb": "slot KB",
    "span_kb": "span KB",
    "splits": "parts of sums",
    "width": "floats per access",
    "work": "blocks per multiprocessor",
}
_VALUES: Mapping[tuple[str, Choice], str] = {
    ("arithmetic", "bf16x3"): "three bf16 products",
    ("arithmetic", "fp16"): "one fp16 product",
    ("divide", "divide"): "division",
    ("math", "fast"): "fast math",
    ("math", "libm"): "C library",
    ("math", "polynomial"): "polynomials",
    ("math", "precise"): "precise math",
    ("order", "passes"): "pass by pass",
    ("order", "rows"): "row by row",
    ("reuse", "buffer"): "in a buffer",
    ("reuse", "output"): "in the output",
    ("reuse", "recompute"): "recomputed",
}


def difference(parent: Choices, base: Choices, choices: Choices) -> str:
    """Summarize how ``choices`` differ from ``parent``.

    ``base`` is the parent with only the transformation applied. Differences from ``base`` come first, because they
    distinguish siblings.
    """
    changed = [key for key in choices if key in parent and choices[key] != parent[key]]
    own = [key for key in changed if base.get(key) != choices[key]]
    return ", ".join(_changes([*own, *(key for key in changed if key not in own)], parent, choices))


def _changes(keys: list[str], parent: Choices, choices: Choices) -> Iterator[str]:
    done: set[str] = set()
    for key in keys:
        if key in done:
            continue
        label, group = next(((label, group) for label, group in _TOGETHER.items() if key in group), ("", (key,)))
        done.update(group)
        before, after = parent[key], choices[key]
        if label:
            yield f"{label} {_size(parent, group)} -> {_size(choices, group)}"
        elif (key, after) in _FLAGS:
            yield f"+ {_FLAGS[key, after]}"
        elif (key, before) in _FLAGS:
            yield f"- {_FLAGS[key, before]}"
        else:
            name = _LABELS.get(key, key.replace("_", " "))
            yield f"{name} {_words(key, before)} -> {_words(key, after)}".lstrip()


def _size(choices: Choices, group: tuple[str, ...]) -> str:
    return "x".join(str(choices[key]) for key in group)


def _words(key: str, value: Choice) -> str:
    return _VALUES.get((key, value), str(value).replace("_", " "))
