"""Measure the overhead of many concurrent model calls: wall time against the ideal, and CPU time per call.

    python benchmarks/models.py

A model server in a separate process streams its answer to each call after 200 ms. Calls use the layers of a search:
concurrency limit, budgets, journal on disk, streamed text for the monitor, and the SDK. Each call writes two events and
a blob.

"burst": the script requests 64 calls at the same moment, once. The ideal is the server's response time. The concurrency
limiter starts the calls 2 ms apart, so that their replies do not coincide. "sustained": as in a search, 64 calls are in
flight and 64 are waiting, for many rounds. The ideal is rounds x the server's response time. The figures exclude the
first calls, which import the SDK and open connections.

"alone": the same calls use only the SDK, without our code. "no SDK": a client sends prepared bytes over a socket, which
shows the cost of the server and the machine. The contenders take turns in each repeat, and ratios are medians over the
repeats. "waited": seconds in which the event loop of the sustained calls was ready to run while other programs used the
cores. On an idle machine, the wall time would be shorter by about this much.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import click
import msgspec
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from engine.config.schema import parse_config
from engine.proposers.llm.calls.connect import make_callers
from engine.proposers.llm.model_protocol import Prompt
from engine.proposers.partial_replies import Partials
from engine.session.journal import Journal
from engine.session.records.model_calls import CallSite
from engine.session.state.session_state import fold
from engine.session.store import EventWriter, SessionReader, create_session

PROMPT = Prompt("kernel", "You write kernels. " * 50, "Write a softmax. " * 400)


def start_server(delay_s: float) -> tuple[subprocess.Popen[str], str]:
    """Start a model server, and return its process and address."""
    command = [sys.executable, "-m", "tests.model_server", "--port", "0", "--delay", str(delay_s)]
    root = Path(__file__).resolve().parents[1]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=root)
    assert process.stdout is not None
    found = re.search(r"http://127.0.0.1:\d+", process.stdout.readline())
    assert found is not None
    return process, found[0]


@dataclass(frozen=True)
class Figures:
    """A contender's figures in one repeat.

    The figures are the wall seconds of burst and sustained calls, and the CPU milliseconds per sustained call.
    ``waited_s`` counts the seconds in which the event loop was ready while other programs used the cores.
    """

    burst_s: float
    sustained_s: float
    processor_ms: float
    waited_s: float


Ask = Callable[[], Awaitable[None]]
Contender = Callable[[str, int], AbstractAsyncContextManager[Ask]]
"""A function of a server's address and the number of concurrent calls. Yields a function that makes one call."""


async def measure(contender: Contender, address: str, concurrency: int, rounds: int) -> Figures:
    """Make a burst of ``concurrency`` calls, then ``rounds`` times as many with ``concurrency`` in flight."""
    async with contender(address, concurrency) as ask:

        async def all_of(calls: int) -> float:
            began = time.perf_counter()
            await asyncio.gather(*(ask() for _ in range(calls)))
            return time.perf_counter() - began

        async def some_of(left: Iterator[int]) -> None:
            for _ in left:
                await ask()

        async def one_after_the_other(calls: int) -> float:
            left = iter(range(calls))
            began = time.perf_counter()
            await asyncio.gather(*(some_of(left) for _ in range(2 * concurrency)))
            return time.perf_counter() - began

        await all_of(concurrency)
        burst_s = await all_of(concurrency)
        processor, waited = time.process_time(), waited_s()
        sustained_s = await one_after_the_other(concurrency * rounds)
        processor, waited = time.process_time() - processor, waited_s() - waited
    return Figures(burst_s, sustained_s, processor / concurrency / rounds * 1000, waited)


def waited_s() -> float:
    """Return the seconds that this thread has waited for a core, according to the Linux kernel."""
    return int(Path("/proc/thread-self/schedstat").read_text().split()[1]) / 1e9


def ours(provider: str) -> Contender:
    """Make calls as a search does."""

    @contextlib.asynccontextmanager
    async def contender(address: str, concurrency: int) -> AsyncIterator[Ask]:
        where = f'base_url = "{address}/v1"\napi = "responses"' if provider == "openai" else f'base_url = "{address}/"'
        table = f'[[models]]\nprovider = "{provider}"\nmodel = "m"\n{where}\nconcurrency = {concurrency}\n'
        with tempfile.TemporaryDirectory() as scratch:
            directory = Path(scratch)
            config = parse_config('problems = ["builtin:quickstart/softmax"]\n' + table, directory / "config.toml")
            paths = create_session(directory, provider, config.frozen_toml(), "config.toml", 0)
            writer = EventWriter(paths)
            with SessionReader(paths) as reader:
                journal = Journal(writer, fold(reader.read()))
            caller = make_callers(config, journal.state, journal)["m"]
            partials, numbers = Partials(paths.directory), itertools.count()

            async def ask() -> None:
                site = CallSite("softmax", 1, "kernel", f"i{next(numbers)}")
                with partials.of(site) as on_text:
                    await caller.call(site, PROMPT, on_text)

            yield ask
            assert journal.state.spending.total.calls == next(numbers) and not journal.state.spending.total.failed
            await caller.close()
            writer.close()

    return contender


@contextlib.asynccontextmanager
async def no_sdk(address: str, concurrency: int) -> AsyncIterator[Ask]:
    """Make calls with a minimal client."""
    body = msgspec.json.encode(
        {"model": "m", "instructions": PROMPT.system, "input": PROMPT.user, "stream": True, "store": False}
    )
    request = b"POST /v1/responses HTTP/1.1\r\nhost: here\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body)
    host, _, port = address.removeprefix("http://").partition(":")
    places = asyncio.Semaphore(concurrency)
    streams = [await asyncio.open_connection(host, int(port)) for _ in range(concurrency)]

    async def ask() -> None:
        async with places:
            reader, writer = streams.pop()
            writer.write(request)
            await reader.readuntil(b"\r\n0\r\n\r\n")
            streams.append((reader, writer))

    yield ask
    for _, writer in streams:
        writer.close()


@contextlib.asynccontextmanager
async def bare_openai(address: str, concurrency: int) -> AsyncIterator[Ask]:
    from openai import AsyncOpenAI

    places = asyncio.Semaphore(concurrency)
    async with AsyncOpenAI(api_key="none", base_url=f"{address}/v1", max_retries=0) as sdk:

        async def ask() -> None:
            async with places:
                async for _ in await sdk.responses.create(
                    model="m", instructions=PROMPT.system, input=PROMPT.user, stream=True, store=False
                ):
                    pass

        yield ask


@contextlib.asynccontextmanager
async def bare_gemini(address: str, concurrency: int) -> AsyncIterator[Ask]:
    from google.genai import Client
    from google.genai.types import GenerateContentConfig, HttpOptions

    sdk = Client(api_key="none", vertexai=False, http_options=HttpOptions(base_url=f"{address}/"))
    options = GenerateContentConfig(system_instruction=PROMPT.system)
    places = asyncio.Semaphore(concurrency)

    async def ask() -> None:
        async with places:
            stream = await sdk.aio.models.generate_content_stream(model="m", contents=PROMPT.user, config=options)
            async for _ in stream:
                pass

    try:
        yield ask
    finally:
        await sdk.aio.aclose()


CONTENDERS: dict[str, Contender] = {
    "no SDK": no_sdk,
    "openai": ours("openai"),
    "openai alone": bare_openai,
    "gemini": ours("gemini"),
    "gemini alone": bare_gemini,
}


def run(name: str, address: str, concurrency: int, rounds: int) -> Figures:
    """Run one contender in its own process."""
    logging.getLogger("httpx2").setLevel(logging.WARNING)
    return asyncio.run(measure(CONTENDERS[name], address, concurrency, rounds))


@click.command()
@click.option("--concurrency", default=64, show_default=True)
@click.option("--rounds", default=50, show_default=True, help="Number of sustained calls per concurrent slot.")
@click.option("--delay", default=0.2, show_default=True, help="Response time of the server, in seconds.")
@click.option("--repeats", default=3, show_default=True)
def main(concurrency: int, rounds: int, delay: float, repeats: int) -> None:
    """Measure all contenders, and print one table."""
    load = os.getloadavg()[0]
    figures: dict[str, list[Figures]] = {name: [] for name in CONTENDERS}
    process, address = start_server(delay)
    # Use a fresh process for each contender, so that none benefits from another's imports.
    fresh = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), max_tasks_per_child=1)
    try:
        for _ in range(repeats):
            for name in CONTENDERS:
                figures[name].append(fresh.submit(run, name, address, concurrency, rounds).result())
    finally:
        fresh.shutdown()
        process.send_signal(signal.SIGTERM)
        process.wait(10)
    table = Table(
        title=f"{concurrency} concurrent calls of {delay * 1000:g} ms, {rounds} sustained rounds; "
        f"medians of {repeats}; load {load:.1f} before, {os.getloadavg()[0]:.1f} after"
    )
    for title in ("client", "burst s", "overhead", "sustained s", "overhead", "CPU ms/call", "waited s"):
        table.add_column(title, justify="left" if title == "client" else "right")
    for name, runs in figures.items():
        burst, sustained = median(run.burst_s for run in runs), median(run.sustained_s for run in runs)
        table.add_row(
            name,
            f"{burst:.3f}",
            f"{(burst / delay - 1) * 100:.1f}%",
            f"{sustained:.3f}",
            f"{(sustained / delay / rounds - 1) * 100:.1f}%",
            f"{median(run.processor_ms for run in runs):.2f}",
            f"{median(run.waited_s for run in runs):.2f}",
        )
    console = Console()
    console.print(table)
    for name in ("openai", "gemini"):
        pairs = list(zip(figures[name], figures[f"{name} alone"], strict=True))
        console.print(
            f"{name}, ratios of search / alone: burst {median(a.burst_s / b.burst_s for a, b in pairs):.2f}, "
            f"sustained {median(a.sustained_s / b.sustained_s for a, b in pairs):.2f}, "
            f"CPU {median(a.processor_ms / b.processor_ms for a, b in pairs):.2f}"
        )


if __name__ == "__main__":
    main()
