"""Client for a program: one process per call, with the prompt on stdin and the reply on stdout.

A supervisor process (``supervisor.py``) runs the program and kills the program's descendants when the call ends.
"""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import os
import signal
import sys
import tempfile
from asyncio import StreamReader
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable, Sequence
from pathlib import Path

from engine.config.model_tables import CommandModel
from engine.proposers.llm.clients.command.program import ProgramMissing, check_program, environment_of
from engine.proposers.llm.clients.command.report import REJECTED, Report, read_report
from engine.proposers.llm.clients.keys import without_key, without_keys
from engine.proposers.llm.clients.streaming import Growing, short
from engine.proposers.llm.model_protocol import CallFailed, Prompt, Reply
from engine.session.records.model_calls import FailureKind, Usage
from engine.system.child import REAP_S, end_group

_SUPERVISOR = Path(__file__).with_name("supervisor.py")
_STDERR_BYTES = 64 << 10
"""Number of bytes to keep from the end of stderr."""
_SHOWN = 300
"""Number of characters from the end of stderr that an error message shows."""


class CommandClient:
    """The client for one program. ``key`` is the value of the environment variable that the config's ``key_env`` names.
    Messages never show the key.
    """

    provider = "command"

    def __init__(self, config: CommandModel, key: str) -> None:
        self.model = config.label
        self.limit = config.output_limit
        self._config = config
        self._key = key

    async def complete(self, prompt: Prompt, on_text: Callable[[str], None]) -> Reply:
        """Run the program once. While the program is writing, call ``on_text`` with the text so far. Raises
        :class:`CallFailed`.
        """
        try:
            check_program(self._config)
        except ProgramMissing as error:
            raise CallFailed("no_program", str(error), usage=Usage()) from None
        try:
            return await self._run(prompt, Growing(on_text))
        except CallFailed as error:
            failure = error
        # Raise outside the handler, so that no traceback exposes the message with the key.
        raise without_key(failure, self._config, self._key)

    async def close(self) -> None:
        """Do nothing, because each call ends its own process."""

    async def _run(self, prompt: Prompt, text: Growing) -> Reply:
        stderr = _Tail(_STDERR_BYTES, self._key)
        process, control = await self._start()
        assert process.stdin is not None and process.stdout is not None and process.stderr is not None
        feeding = asyncio.create_task(_feed(process, prompt_text(prompt)))
        listening = asyncio.create_task(_listen(process.stderr, stderr))
        try:
            async with asyncio.timeout(self._config.timeout_s):
                await _read_text(process.stdout, text)
                await listening
                status = await process.wait()
        except TimeoutError:
            message = f"the program did not finish within {self._config.timeout_s:g} s"
            raise _failed("timeout", message, stderr) from None
        except OSError as error:
            raise CallFailed("program", f"cannot read from the program: {error.strerror}") from None
        finally:
            await _end(process, control, (feeding, listening))
        report = read_report(stderr.text)
        if status != 0 or report.failure is not None:
            raise _failure_of(status, report)
        if not text.text.strip():
            raise _failed("broken_reply", "the program printed no reply", stderr)
        told = report.usage
        if told is None:
            return Reply(text.text, self.model, None, "length" if text.too_long else "stop")
        finish = "length" if text.too_long else told.finish
        return Reply(text.text, short(told.model) or self.model, told.usage, finish, dollars=told.dollars)

    async def _start(self) -> tuple[Process, int]:
        """Start the supervisor. Returns the process and a file descriptor. Closing the descriptor ends the call."""
        environment = environment_of(self._config)
        theirs, ours = os.pipe()
        try:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-I", "-S", str(_SUPERVISOR), str(theirs), tempfile.gettempdir()),
                ",".join(environment),
                *self._config.command,
                env=environment,
                cwd="/",
                stdin=PIPE,
                stdout=PIPE,
                stderr=PIPE,
                pass_fds=(theirs,),
                start_new_session=True,
            )
        except OSError as error:
            os.close(ours)
            raise CallFailed("program", f"cannot start a process: {error.strerror}", usage=Usage()) from None
        except BaseException:
            os.close(ours)
            raise
        finally:
            os.close(theirs)
        return process, ours


def prompt_text(prompt: Prompt) -> bytes:
    """Return the text that a program reads, in UTF-8: the system prompt, an empty line, and the request."""
    return f"{prompt.system.rstrip()}\n\n{prompt.user.rstrip()}\n".encode(errors="replace")


class _Tail:
    """The end of a program's stderr, with ``key`` masked."""

    def __init__(self, most_bytes: int, key: str = "") -> None:
        self._most_bytes = most_bytes
        self._key = key
        self._kept = bytearray()

    def add(self, piece: bytes) -> None:
        self._kept += piece
        del self._kept[: -self._most_bytes]

    @property
    def text(self) -> str:
        # Mask the key before a message shortens the text, because half a key would stay visible.
        return without_keys(self._kept.decode(errors="replace"), (self._key,))


async def _feed(process: Process, text: bytes) -> None:
    """Write the prompt to the program's stdin and close stdin. The program may stop reading early."""
    assert process.stdin is not None
    with contextlib.suppress(ConnectionError):
        process.stdin.write(text)
        await process.stdin.drain()
        process.stdin.close()


async def _read_text(stream: StreamReader, text: Growing) -> None:
    """Read a program's reply to its end. Invalid UTF-8 becomes U+FFFD."""
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    while piece := await stream.read(1 << 16):
        text.add(decoder.decode(piece))
    text.add(decoder.decode(b"", final=True))


async def _listen(stream: StreamReader, tail: _Tail) -> None:
    while piece := await stream.read(1 << 16):
        tail.add(piece)


async def _end(process: Process, control: int, tasks: Sequence[asyncio.Task[None]]) -> None:
    """End the call: the supervisor kills the program and all its descendants."""
    os.close(control)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert process.stdin is not None and process.stdout is not None and process.stderr is not None
    process.stdin.close()
    # Read the pipes to their ends, because asyncio otherwise does not report that the process has ended.
    unread = (_listen(stream, _Tail(1)) for stream in (process.stdout, process.stderr))
    try:
        await asyncio.wait_for(asyncio.gather(*unread, process.wait()), REAP_S)
    except TimeoutError:
        await end_group(process)


def _failure_of(status: int, report: Report) -> CallFailed:
    """Convert a program's failure to :class:`CallFailed`. ``status`` is the exit code, or a negative signal number."""
    how = f"exit code {status}" if status >= 0 else f"killed by {_signal_name(-status)}"
    message = _with_tail(how, report.said)
    kind: FailureKind = "program" if report.failure is None else report.failure.kind
    wait_s = None if report.failure is None else report.failure.retry_after_s
    if report.usage is not None:
        return CallFailed(kind, message, wait_s, report.usage.usage, report.usage.dollars)
    return CallFailed(kind, message, wait_s, Usage() if kind in REJECTED else None)


def _failed(kind: FailureKind, message: str, stderr: _Tail) -> CallFailed:
    """Return a failure with the end of stderr and the program's reported usage."""
    with contextlib.suppress(CallFailed):  # An invalid report leaves the usage unconfirmed.
        report = read_report(stderr.text)
        message = _with_tail(message, report.said)
        if report.usage is not None:
            return CallFailed(kind, message, usage=report.usage.usage, dollars=report.usage.dollars)
    return CallFailed(kind, message)


def _with_tail(message: str, said: str) -> str:
    """Append the end of stderr to a message, on the same line."""
    words = " ".join(said.split())
    if not words:
        return message
    return f"{message}: {words if len(words) <= _SHOWN else '...' + words[3 - _SHOWN :]}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
