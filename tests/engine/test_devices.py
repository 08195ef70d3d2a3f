from __future__ import annotations

import pytest

from engine.devices.hardware import DeviceReader, cuda_arch, discover, usable_cores, visible_devices
from engine.devices.sample import decode_samples, encode_samples

UUIDS = ["GPU-aaaa-1", "GPU-aabb-2", "GPU-cccc-3"]


def test_the_cpu_is_always_a_device() -> None:
    fact = discover()[-1]
    assert (fact.id, fact.kind, fact.cores) == ("cpu", "cpu", usable_cores())
    assert fact.name
    assert fact.memory_bytes > 1 << 20


def test_every_device_has_a_sample_and_it_survives_json() -> None:
    samples = DeviceReader().read()
    assert [sample.device for sample in samples] == [fact.id for fact in discover()]
    cpu = samples[-1]
    assert cpu.memory_total is not None and cpu.memory_used is not None and 0 < cpu.memory_used < cpu.memory_total
    assert all(0 <= core <= 100 for core in cpu.cores)
    assert decode_samples(encode_samples(samples)) == samples


def test_one_device_is_read_alone() -> None:
    reader = DeviceReader()
    for fact in discover():
        sample = reader.read_device(fact.id)
        assert sample is not None and (sample.device, sample.kind) == (fact.id, fact.kind)
    assert reader.read_device("GPU-missing") is None


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        (None, UUIDS),
        ("", []),
        ("-1", []),
        ("2,0", [UUIDS[2], UUIDS[0]]),
        ("GPU-cc", [UUIDS[2]]),
        ("GPU-aa", []),
        ("1,7,0", [UUIDS[1]]),
        ("1,1", [UUIDS[1]]),
    ],
)
def test_cuda_visible_devices_is_read_as_cuda_reads_it(visible: str | None, expected: list[str]) -> None:
    assert visible_devices(UUIDS, visible) == expected


def test_hopper_and_later_build_for_their_own_target() -> None:
    assert cuda_arch(8, 9) == "sm_89"
    assert cuda_arch(9, 0) == "sm_90a"
    assert cuda_arch(10, 0) == "sm_100a"


def test_absence_of_nvidia_devices_is_said_in_words() -> None:
    reader = DeviceReader()
    has_cuda = any(fact.kind == "cuda" for fact in reader.discover())
    assert (reader.cuda_absence is None) == has_cuda


@pytest.mark.gpu
@pytest.mark.skipif(discover()[0].kind != "cuda", reason="no NVIDIA device")
def test_a_gpu_reports_its_figures() -> None:
    fact, sample = discover()[0], DeviceReader().read()[0]
    assert fact.kind == "cuda" and fact.id.startswith("GPU-") and fact.cores > 0 and fact.memory_bytes > 1 << 30
    assert fact.clock_mhz is not None and fact.clock_mhz > 500
    assert sample.utilization is not None and sample.memory_used is not None and sample.power_w is not None
