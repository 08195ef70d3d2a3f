"""Capture one call in a CUDA graph, without running the graph, and read the GPU launches from the graph's nodes.

Only the launch itself reveals the size of its dynamic shared memory, which the kernel's code may compute at run time.
The kernel's process writes this record, so the record only informs people and models. No check relies on the record.
Source: CUDA Driver API, sections 6.23 (graphs) and 6.22 (functions).
"""

from __future__ import annotations

import ctypes
import struct
from ctypes import byref, c_char_p, c_int, c_size_t, c_uint, c_void_p

from engine.evaluation.sandbox.inside.abi import Cuda

TYPE_CHECKING = False  # Importing typing takes milliseconds.
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Driver = Callable[..., None]
    """A function that calls a CUDA driver function by its name, and raises the driver's exception on failure."""

_MOST = 64
"""Maximum number of launches to report."""
_MOST_NAME_CHARS = 1000
_PARAMETERS = struct.Struct("=Q7I4xQQQQ")
"""``CUDA_KERNEL_NODE_PARAMS_v2``: function, grid, block, dynamic shared memory, arguments, kernel, context."""


def recorded(driver: Driver, stream: c_void_p, call: Callable[[], object], failed: type[Exception]) -> list[Any]:
    """Return the launches of ``call`` on ``stream``, in the order of the graph's nodes.

    Each launch has the fields of ``engine.session.records.verdict.Launch``. Returns [] if CUDA cannot capture the call,
    for example because the call waits for the device. ``failed``: the driver's exception.
    """
    graph = c_void_p()
    driver("cuStreamBeginCapture_v2", stream, Cuda.CAPTURE_RELAXED)
    try:
        call()
    finally:
        try:
            driver("cuStreamEndCapture", stream, byref(graph))
        except failed:
            graph = c_void_p()
    if not graph.value:
        return []
    try:
        return [_launch(driver, node) for node in _kernel_nodes(driver, graph)[:_MOST]]
    finally:
        driver("cuGraphDestroy", graph)


def _kernel_nodes(driver: Driver, graph: c_void_p) -> list[c_void_p]:
    count, kind = c_size_t(), c_int()
    driver("cuGraphGetNodes", graph, None, byref(count))
    nodes = (c_void_p * max(count.value, 1))()
    driver("cuGraphGetNodes", graph, nodes, byref(count))
    found = []
    for node in map(c_void_p, nodes[: count.value]):
        driver("cuGraphNodeGetType", node, byref(kind))
        if kind.value == Cuda.KERNEL_NODE:
            found.append(node)
    return found


def _launch(driver: Driver, node: c_void_p) -> dict[str, Any]:
    held = ctypes.create_string_buffer(_PARAMETERS.size)
    driver("cuGraphKernelNodeGetParams_v2", node, held)
    function, *shape, _, _, kernel, _ = _PARAMETERS.unpack(held.raw)
    if not function:
        found = c_void_p()
        driver("cuKernelGetFunction", byref(found), c_void_p(kernel))
        function = found.value
    grid, block, dynamic = shape[:3], shape[3:6], shape[6]
    registers, static, local = (
        _attribute(driver, function, which) for which in (Cuda.NUM_REGS, Cuda.SHARED_SIZE_BYTES, Cuda.LOCAL_SIZE_BYTES)
    )
    blocks, threads = c_int(), block[0] * block[1] * block[2]
    arguments = c_void_p(function), c_int(threads), c_size_t(dynamic)
    driver("cuOccupancyMaxActiveBlocksPerMultiprocessor", byref(blocks), *arguments)
    return {
        "kernel": _name(driver, function)[:_MOST_NAME_CHARS],
        "grid": grid,
        "block": block,
        "registers": registers,
        "static_shared_bytes": static,
        "dynamic_shared_bytes": dynamic,
        "local_bytes": local,
        "blocks_per_sm": blocks.value,
    }


def _attribute(driver: Driver, function: int, which: int) -> int:
    value = c_int()
    driver("cuFuncGetAttribute", byref(value), c_uint(which), c_void_p(function))
    return value.value


def _name(driver: Driver, function: int) -> str:
    """Return the kernel's name, or "" from a driver before CUDA 12.3."""
    name = c_char_p()
    try:
        driver("cuFuncGetName", byref(name), c_void_p(function))
    except AttributeError:
        return ""
    return (name.value or b"").decode(errors="replace")
