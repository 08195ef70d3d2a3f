"""Transformations that the C++ templates share."""

from __future__ import annotations

from engine.devices.fact import DeviceFact
from engine.proposers.playbook.base import Choices, Transformation


def has_avx512(device: DeviceFact) -> bool:
    """Return whether the CPU has 32 vector registers of 64 bytes. If the CPU's features are unknown, assume that it
    does.

    Without these registers, GCC 12 uses the stack to split vectors of 16 floats. Kernels then take 2 to 40 times as
    long as with 8 floats.
    """
    return "avx512f" in device.features or not device.features


def usual_lanes(device: DeviceFact) -> int:
    """Return the number of floats in the CPU's widest vector, 8 or 16."""
    return 16 if has_avx512(device) else 8


def lanes_knob(device: DeviceFact) -> tuple[int, ...]:
    """Return the numbers of floats per vector that are worth trying."""
    return (8, 16) if has_avx512(device) else (8,)


def vectorize(functions: str, changes: Choices, device: DeviceFact) -> Transformation:
    """Vectorize a loop. ``functions`` is a phrase that names the kernel's elementary functions, or ""."""
    become = "become polynomials" if " and " in functions else "becomes a polynomial"
    also = (
        f" {functions.capitalize()} {become} that all lanes evaluate at once (relative error about 1e-7); "
        "one library call per element would undo the gain."
        if functions
        else ""
    )
    return Transformation(
        "vectorise",
        "compute",
        "The loops process one float per instruction, so the arithmetic units are almost idle. Use GCC's vector "
        f"extensions with {usual_lanes(device)} floats per vector, and a scalar loop for the tail.{also} Expect a "
        "severalfold speedup, until memory becomes the limit.",
        {"lanes": usual_lanes(device), "math": "polynomial", **changes},
        ("lanes",),
        gain=8.0 if functions else 2.5,
        helps="compute",
    )


def narrower_vectors() -> Transformation:
    return Transformation(
        "narrower_vectors",
        "compute",
        "512-bit instructions lower the clock rate of some cores and leave longer tails. Use 256-bit vectors, which "
        "are equally fast in memory-bound kernels and keep the clock rate higher.",
        {"lanes": 8},
        ("lanes",),
        gain=1.01,
        helps="compute",
    )


def shorter_polynomial() -> Transformation:
    return Transformation(
        "shorter_polynomial",
        "compute",
        "The degree-6 polynomial for exp is more accurate than float requires. Degree 5 saves a multiply-add per "
        "element; the relative error stays near 2e-7.",
        {"exp_degree": 5},
        ("exp_degree",),
        gain=1.04,
        helps="compute",
    )


def reciprocal(what: str) -> Transformation:
    """Replace divisions with multiplications by a reciprocal. ``what`` is an imperative clause that says which
    reciprocal to compute.
    """
    return Transformation(
        "reciprocal",
        "compute",
        f"A vector division takes about twenty cycles, but a multiplication only half a cycle. {what} and multiply "
        "each element by this reciprocal. The reciprocal adds one rounding error.",
        {"divide": "reciprocal"},
        gain=1.12,
        helps="compute",
    )


def streaming_stores(changes: Choices) -> Transformation:
    waits = " Values that wait for the row's sum move to a small buffer that stays in the cache." if changes else ""
    return Transformation(
        "streaming_stores",
        "memory",
        "An ordinary store first reads the cache line that it overwrites, which doubles the traffic for the output. "
        f"Non-temporal stores bypass the caches, so that the caches hold more of the inputs.{waits} Expect up to a "
        "third less traffic in memory-bound kernels.",
        {"stores": "stream", **changes},
        ("unroll",),
        gain=1.3,
        helps="memory",
    )


def prefetch() -> Transformation:
    return Transformation(
        "prefetch",
        "latency",
        "The hardware prefetcher stops at page boundaries and starts over on every row. Prefetch lines a fixed "
        "distance ahead, so that loads hit the L1 cache. The gain is largest in memory-bound kernels.",
        {"prefetch": 512},
        ("prefetch",),
        gain=1.45,
        helps="memory",
    )


def unroll_output() -> Transformation:
    return Transformation(
        "unroll_output",
        "control",
        "Unroll the loop that writes the output: loop overhead shrinks, and several independent vectors are in flight.",
        {"unroll": 4},
        ("unroll",),
        gain=1.08,
        helps="latency",
    )


def dynamic_schedule(what: str, changes: Choices, opens: tuple[str, ...]) -> Transformation:
    """Distribute work among threads dynamically. ``what`` names the units of work."""
    return Transformation(
        "dynamic_schedule",
        "parallelism",
        f"With equal shares, the slowest core determines the time, and cores differ in speed. Give {what} to cores as "
        "they become free, in pieces large enough to hide the cost of the shared counter.",
        {"schedule": "dynamic", **changes},
        opens,
        gain=1.03,
    )


def tune(opens: tuple[str, ...]) -> Transformation:
    return Transformation(
        "tune",
        "control",
        f"The search has chosen the structure's settings one at a time. Vary {_listed(opens)} together around the "
        "fastest kernel so far.",
        {},
        opens,
        gain=1.02,
    )


def _listed(names: tuple[str, ...]) -> str:
    words = [name.replace("_", " ") for name in names]
    return " and ".join([", ".join(words[:-1]), words[-1]]) if len(words) > 1 else "".join(words)
