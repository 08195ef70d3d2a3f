"""Messages of a hostile runner cost the judge no lasting memory, and honest messages fit the limits."""

from __future__ import annotations

import gc
import socket
from pathlib import Path

import pytest

from engine.evaluation.sandbox.inside import wire


def open_descriptors() -> int:
    gc.collect()  # other tests' memory holds some
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


@pytest.mark.parametrize(
    "datagram", [b"x", b"[1]", b"[" * 60000, rb'{"a": "\ud800"}', b'{"a": "\xed\xa0\x80"}', rb'{"\udfff": 1}']
)
def test_descriptors_beside_what_is_no_message_are_closed(datagram: bytes) -> None:
    judge, runner = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with judge, runner:
        socket.send_fds(runner, [datagram], [0] * 8)
        before = open_descriptors()
        with pytest.raises((ValueError, RecursionError)):
            wire.receive(judge)
        assert open_descriptors() == before


def test_where_all_results_lie_fits_in_one_message() -> None:
    addresses = [-(1 << 47) + 64 * number for number in range(wire.MOST_BUFFERS)]
    judge, runner = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with judge, runner:
        wire.send(runner, {"left": addresses})
        assert wire.receive(judge) == ({"left": addresses}, [])


def test_text_of_any_script_is_passed_on() -> None:
    judge, runner = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with judge, runner:
        wire.send(runner, {"text": "größer, 大きい, 🙂"})
        assert wire.receive(judge) == ({"text": "größer, 大きい, 🙂"}, [])
