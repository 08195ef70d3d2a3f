"""Give a judge exclusive turns on its device, with enough memory for each request."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from typing import Protocol

from engine.devices.nvml import driver
from engine.evaluation.judge import messages
from engine.evaluation.judge.admission import (
    Need,
    after_running_out,
    needed_bytes,
    ran_out_of_memory,
    undecided,
    with_the_whole_device,
)
from engine.evaluation.judge.device_lock import alone, asking_for_memory, is_awaited, memory_is_asked_for
from engine.evaluation.judge.messages import AnyAnswer, AnyRequest, JudgeSettings
from engine.evaluation.judge_policy import POLICY
from engine.system.child import is_below
from engine.system.memory import Memory

_ADMISSION = POLICY.admission


class MemoryUser(Protocol):
    """A judge's use of device memory."""

    def need(self, request: AnyRequest) -> Need:
        """Return the memory that the request needs, including memory that the judge already has."""
        ...

    def held_bytes(self, request: AnyRequest) -> int:
        """Return the part of the request's memory that the judge already has. The result may include memory of other
        open problems.
        """
        ...

    def has_other_problems(self, request: AnyRequest) -> bool:
        """Return whether the judge has open problems that the request does not need."""
        ...

    @property
    def evictable_bytes(self) -> int:
        """Number of bytes that :meth:`evict` would release, or 0 if the number is small."""
        ...

    def evict(self) -> None:
        """Release memory whose content later requests can rebuild."""
        ...

    def close_problems(self) -> bool:
        """Release all memory acquired since the judge started. Return whether the judge had acquired any."""
        ...


class Turns:
    """Take turns on the device in ``settings`` with all other kernel-tui processes.

    ``memory``: reads the device's memory. ``tell``: sends a message to the engine. ``cancelled``: returns whether the
    engine has cancelled the request.
    """

    def __init__(
        self,
        settings: JudgeSettings,
        judge: MemoryUser,
        memory: Callable[[], Memory],
        tell: Callable[[AnyAnswer], None],
        cancelled: Callable[[], bool],
    ) -> None:
        self._device, self._on_gpu = settings.device_id, settings.kind == "cuda"
        self._judge, self._memory, self._tell, self._cancelled = judge, memory, tell, cancelled
        self._looked_at = 0.0
        self._named_at, self._named = -_ADMISSION.name_s, 0

    def take(self, request: AnyRequest, carry_out: Callable[[AnyRequest], AnyAnswer]) -> AnyAnswer:
        """Call ``carry_out`` with exclusive use of the device, and return its answer.

        If the device runs out of memory because of other processes, wait for more memory and retry.
        """
        wait = _Wait()
        answer: AnyAnswer | None = None
        self._tell(messages.AtStage("waiting"))
        while True:
            with alone(self._device, self._give_back_or_give_up) as held:
                if not held:
                    return messages.Failed("cancelled")
                if self._finds_room(request, wait):
                    answer, more = self._attempt(request, carry_out)
                    if more is None:
                        self._make_room()
                        return answer
                    wait = _Wait(more)
                self._judge.close_problems()  # A judge that waits for memory must not occupy any.
            patience_s = _ADMISSION.kernel_s if _is_of_kernel(request) else _ADMISSION.open_s
            if answer is not None and wait.seconds > patience_s:
                return undecided(answer, self._memory())
            if self._sleep(_ADMISSION.retry_s):
                return messages.Failed("cancelled")

    def give_back_when_asked(self) -> None:
        """Between turns, close this judge's problems if the device's holder asks for memory.

        Closing problems does not disturb this judge's timing, because a judge times kernels only during its turns.
        """
        if time.monotonic() - self._looked_at >= _ADMISSION.look_s:
            self._looked_at = time.monotonic()
            if memory_is_asked_for(self._device):
                self._judge.close_problems()

    def _give_back_or_give_up(self) -> bool:
        """While waiting for a turn, release memory if the device's holder asks for memory. Return whether the engine
        cancelled the request.
        """
        self.give_back_when_asked()
        return self._cancelled()

    def _finds_room(self, request: AnyRequest, wait: _Wait) -> bool:
        """Return whether enough memory is free for the request. If not, ask other judges for memory, and wait a few
        seconds.
        """
        if self._lack(request, wait) is None:
            return True
        self._judge.close_problems()
        asks_until = time.monotonic() + (_ADMISSION.ask_s if wait.asks() else 0.0)
        with asking_for_memory(self._device):
            while (lack := self._lack(request, wait)) is not None:
                self._tell(lack)
                if time.monotonic() >= asks_until or self._sleep(_ADMISSION.look_s):
                    return False
        self._tell(messages.MemoryFound())
        return True

    def _lack(self, request: AnyRequest, wait: _Wait) -> messages.AwaitsMemory | None:
        """Return the message that reports a lack of memory to the engine, or None if enough memory is free."""
        memory = self._memory()
        need = wait.need or self._judge.need(request)
        needed = needed_bytes(need, memory.total_bytes, wait.seconds)
        if memory.free_bytes + self._judge.held_bytes(request) >= needed:
            return None
        return messages.AwaitsMemory(needed, memory.free_bytes, self._largest_holder())

    def _attempt(
        self, request: AnyRequest, carry_out: Callable[[AnyRequest], AnyAnswer]
    ) -> tuple[AnyAnswer, Need | None]:
        """Carry out the request once, and return the answer. If other processes caused a lack of memory, also return
        the memory to wait for.
        """
        memory = self._memory()
        mine = Memory(memory.free_bytes + self._judge.held_bytes(request), memory.total_bytes)
        signal.alarm(POLICY.device.request_s)
        answer = carry_out(request)
        signal.alarm(0)
        if not (self._on_gpu and ran_out_of_memory(answer)):
            return answer, None
        if self._judge.has_other_problems(request):  # The request could not use the memory of these problems.
            self._judge.close_problems()
            return answer, self._judge.need(request)
        more = after_running_out(mine)
        return (with_the_whole_device(answer) if more is None else answer), more

    def _make_room(self) -> None:
        """Evict memory if another process is waiting for the device. Drawing the trials again takes less time than a
        verdict.
        """
        if self._on_gpu and self._judge.evictable_bytes and is_awaited(self._device):
            self._judge.evict()

    def _sleep(self, seconds: float) -> bool:
        """Sleep, and return whether the engine has cancelled the request."""
        until = time.monotonic() + seconds
        while not (cancelled := self._cancelled()) and time.monotonic() < until:
            time.sleep(0.02)
        return cancelled

    def _largest_holder(self) -> int:
        """Return the pid of the process outside this engine that uses the most device memory, or 0 if unknown."""
        if self._on_gpu and time.monotonic() - self._named_at >= _ADMISSION.name_s:
            self._named_at, self._named = time.monotonic(), largest_holder(self._device, os.getppid())
        return self._named


class _Wait:
    """One judge's wait for device memory.

    The wait starts with the first turn that finds too little memory. ``need``: the memory to wait for after a failed
    attempt, or None before the first attempt.
    """

    def __init__(self, need: Need | None = None) -> None:
        self.need = need
        self._since_s: float | None = None
        self._asked_at_s = -_ADMISSION.ask_again_s

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._since_s if self._since_s is not None else 0.0

    def asks(self) -> bool:
        """Return whether to ask other judges for memory during this turn. The first call starts the wait."""
        now = time.monotonic()
        self._since_s = now if self._since_s is None else self._since_s
        if now - self._asked_at_s < _ADMISSION.ask_again_s:
            return False
        self._asked_at_s = now
        return True


def largest_holder(device: str, family: int) -> int:
    """Return the pid of the process that uses the most GPU memory according to the driver, or 0 if unknown.

    The function ignores the process ``family`` and its descendants.
    """
    others = [
        (process.memory_bytes or 0, process.pid)
        for process in driver().processes(device)
        if not is_below(process.pid, family)
    ]
    return max(others, default=(0, 0))[1]


def _is_of_kernel(request: AnyRequest) -> bool:
    return isinstance(request, messages.JudgeKernel | messages.TimeRunoff)
