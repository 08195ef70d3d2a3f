"""Occupancy compared with NVIDIA's occupancy calculator for the same inputs."""

from __future__ import annotations

import pytest

from engine.devices.occupancy import asks_for_dynamic_shared, launch_shapes, limits_of, occupancy


@pytest.mark.parametrize(
    ("arch", "threads", "registers", "shared", "blocks", "share", "limits"),
    [
        ("sm_90a", 256, 32, 0, 8, 1.0, ("warps", "registers")),
        ("sm_90a", 256, 33, 0, 6, 0.75, ("registers",)),
        ("sm_90a", 1024, 64, 0, 1, 0.5, ("registers",)),
        ("sm_90a", 1024, 65, 0, 0, 0.0, ("registers",)),
        ("sm_90a", 128, 255, 0, 2, 0.125, ("registers",)),
        ("sm_90a", 32, 16, 0, 32, 0.5, ("blocks",)),
        ("sm_90a", 256, 32, 48 << 10, 4, 0.5, ("shared memory",)),
        ("sm_90a", 256, 32, 227 << 10, 1, 0.125, ("shared memory",)),
        ("sm_90a", 256, 32, 228 << 10, 0, 0.0, ("shared memory",)),
        ("sm_80", 256, 32, 48 << 10, 3, 0.375, ("shared memory",)),
        ("sm_86", 256, 32, 0, 6, 1.0, ("warps",)),
        ("sm_89", 64, 32, 0, 24, 1.0, ("warps", "blocks")),
        ("sm_75", 1024, 64, 0, 1, 1.0, ("warps", "registers")),
        ("sm_90a", 100, 16, 0, 16, 1.0, ("warps",)),
    ],
)
def test_occupancy(
    arch: str, threads: int, registers: int, shared: int, blocks: int, share: float, limits: tuple[str, ...]
) -> None:
    found = occupancy(arch, threads, registers, shared)
    assert found is not None
    assert (found.blocks, found.share, set(found.limits)) == (blocks, share, set(limits))


def test_an_unknown_architecture_has_no_occupancy() -> None:
    assert limits_of("sm_999") is None
    assert occupancy("sm_999", 256, 32, 0) is None
    assert occupancy("sm_90a", 2000, 32, 0) is None


@pytest.mark.parametrize(
    ("source", "shapes"),
    [
        ("k<<<grid, 256, 0, stream>>>(x);", [(256, 0)]),
        ("k<<<(n + 255) / 256, 256>>>(x); j<<<f(1, 2), 64>>>(x);", [(256, 0), (64, 0)]),
        ("constexpr int kThreads = 128;\nk<<<dim3(1, 2), kThreads>>>(x);", [(128, 0)]),
        ("#define B 32\nk<<<g, dim3(B, 8)>>>(x);", [(256, 0)]),
        ("static const unsigned W = 4; k<<<g, 32 * W>>>(x);", [(128, 0)]),
        ("constexpr int kBytes = 65'536; k<<<g, 128, kBytes, stream>>>(x);", [(128, 65536)]),
        ("constexpr int kTile = 64; k<<<g, 128, 2 * kTile * sizeof(float)>>>(x);", [(128, 512)]),
        ("k<<<g, 128, bytes_of(n), stream>>>(x);", [(128, None)]),
        ("k<<<g, block>>>(x);", []),
        ("int launch() { return 0; }", []),
    ],
)
def test_launches_that_a_source_writes_in_numbers(source: str, shapes: list[tuple[int, int | None]]) -> None:
    assert [(one.threads, one.dynamic_shared_bytes) for one in launch_shapes(source)] == shapes


@pytest.mark.parametrize(
    ("source", "asks"),
    [
        ("extern __shared__ float tile[];", True),
        ("extern  __align__(16) __shared__ char tile[];", True),
        ("__shared__ float tile[64];", False),
        ('extern "C" int launch(float* x); __global__ void k() { __shared__ float tile[64]; }', False),
    ],
)
def test_dynamic_shared_memory_is_seen_in_the_source(source: str, asks: bool) -> None:
    assert asks_for_dynamic_shared(source) == asks
