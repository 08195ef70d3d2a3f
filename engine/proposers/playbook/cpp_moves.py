"""Moves that the C++ templates share: what they are called, what they say, what they are expected to give."""

from __future__ import annotations

from engine.proposers.playbook.template import Choices, Move


def vectorise(functions: str, changes: Choices) -> Move:
    """``functions``: the elementary functions of the chain, in words, or ""."""
    become = "become polynomials" if " and " in functions else "becomes a polynomial"
    also = (
        f" {functions.capitalize()} {become} evaluated on all lanes at once (about 1e-7 relative error): "
        "a call of the C library per element would undo the gain."
        if functions
        else ""
    )
    return Move(
        "vectorise",
        "compute",
        "The loops handle one float per instruction, so the arithmetic units are almost idle. Write them with GCC's "
        f"vector extensions, 8 or 16 floats per instruction, and a scalar loop for the tail.{also} Expected: several "
        "times faster until memory becomes the limit.",
        {"lanes": 16, "math": "polynomial", **changes},
        ("lanes",),
        gain=8.0 if functions else 2.5,
        helps="compute",
    )


def narrower_vectors() -> Move:
    return Move(
        "narrower_vectors",
        "compute",
        "512-bit instructions lower the clock of some cores and leave longer tails. Use 256-bit vectors: as fast where "
        "memory is the limit, at a higher clock.",
        {"lanes": 8},
        ("lanes",),
        gain=1.01,
        helps="compute",
    )


def shorter_polynomial() -> Move:
    return Move(
        "shorter_polynomial",
        "compute",
        "The exponential's polynomial of degree 6 is more exact than float needs. Degree 5 saves a multiply-add per "
        "element; the error stays near 2e-7.",
        {"exp_degree": 5},
        ("exp_degree",),
        gain=1.04,
        helps="compute",
    )


def reciprocal(what: str) -> Move:
    return Move(
        "reciprocal",
        "compute",
        f"A vector division takes some twenty cycles, a multiplication half of one. {what} and multiply each element "
        "by it; the result changes by one rounding.",
        {"divide": "reciprocal"},
        gain=1.12,
        helps="compute",
    )


def streaming_stores(changes: Choices) -> Move:
    waits = " The values that wait for the row's sum move to a small buffer that stays in the cache." if changes else ""
    return Move(
        "streaming_stores",
        "memory",
        "An ordinary store first reads the line it overwrites: the output costs twice its bytes. Non-temporal stores "
        f"write whole lines past the caches and keep them free for the inputs.{waits} Expected: up to a third less "
        "traffic where memory is the limit.",
        {"stores": "stream", **changes},
        ("unroll",),
        gain=1.3,
        helps="memory",
    )


def prefetch() -> Move:
    return Move(
        "prefetch",
        "latency",
        "The hardware prefetcher stops at page borders and starts anew on every row. Ask for lines a fixed distance "
        "ahead, so that the loads find them in the first-level cache. Expected: most where memory is the limit.",
        {"prefetch": 512},
        ("prefetch",),
        gain=1.45,
        helps="memory",
    )


def unroll_output() -> Move:
    return Move(
        "unroll_output",
        "control",
        "Unroll the loop that writes the output: less loop overhead, and several independent vectors in flight.",
        {"unroll": 4},
        ("unroll",),
        gain=1.08,
        helps="latency",
    )


def dynamic_schedule(what: str, changes: Choices, opens: tuple[str, ...]) -> Move:
    return Move(
        "dynamic_schedule",
        "parallelism",
        f"With equal shares the slowest core decides, and cores are not equally fast. Hand out {what} on demand, in "
        "pieces large enough that the shared counter does not matter.",
        {"schedule": "dynamic", **changes},
        opens,
        gain=1.03,
    )


def tune(opens: tuple[str, ...]) -> Move:
    return Move(
        "tune",
        "control",
        f"The structure is settled, its settings were chosen one at a time. Vary {_listed(opens)} together around the "
        "fastest kernel so far.",
        {},
        opens,
        gain=1.02,
    )


def _listed(names: tuple[str, ...]) -> str:
    words = [name.replace("_", " ") for name in names]
    return " and ".join([", ".join(words[:-1]), words[-1]]) if len(words) > 1 else "".join(words)
