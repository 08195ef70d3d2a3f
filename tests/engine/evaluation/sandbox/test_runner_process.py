"""The spare process, which waits for the next compiled kernel."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import psutil
import pytest

from engine.evaluation.sandbox.resource_limits import Limits
from engine.evaluation.sandbox.runner import Runner
from engine.evaluation.sandbox.runner_process import SpareProcess, spare_process
from tests.patience import PATIENCE_S


@pytest.fixture
def spare() -> Iterator[SpareProcess]:
    one = spare_process("cpu", True)
    yield one
    one.stop()


def children() -> set[psutil.Process]:
    return set(psutil.Process().children(recursive=True))


def test_the_next_runner_uses_the_waiting_process(spare: SpareProcess) -> None:
    before = children()
    spare.prepare()
    waiting = children() - before
    with Runner("cpu", Limits(), lambda: False) as runner:
        assert waiting <= children() - before
        spare.prepare()
        with Runner("cpu", Limits(), lambda: False) as another:
            assert another.pid != runner.pid
    assert not children() - before


def test_a_killed_spare_process_is_replaced(spare: SpareProcess) -> None:
    before = children()
    spare.prepare()
    killed = children() - before
    for one in killed:
        one.send_signal(signal.SIGKILL)
    psutil.wait_procs(killed, timeout=PATIENCE_S)
    with Runner("cpu", Limits(), lambda: False) as runner:
        assert runner.pid not in [one.pid for one in killed]


def test_stopping_leaves_no_process(spare: SpareProcess) -> None:
    before = children()
    spare.prepare()
    assert children() - before
    spare.stop()
    spare.stop()
    assert not children() - before
