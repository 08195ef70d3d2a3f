"""Many calls to a model at once: how near their wall time is to the ideal, and what a call costs this machine.

    python benchmarks/models.py

A model server in a process of its own answers each call after 200 ms, or 2 s, as a stream. Calls go through everything
that the search uses: gate, limits, journal on disk (two events and a blob each), the text so far for the monitor, SDK.
The ideal is the server's time alone: calls / concurrency x that. The first calls, in which the SDK is imported and
connections are made, do not count.
"SDK": the same calls through the SDK alone, without any of our code.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from engine.config import parse_config
from engine.models.connect import make_callers
from engine.models.protocol import CallSite, Prompt
from engine.proposers.partial import Partials
from engine.search.journal import Journal
from engine.session import EventWriter, SessionReader, create_session
from engine.state import fold

CASES = ((0.2, 10), (2.0, 3))
"""Seconds that the server takes for a call, and calls for each place."""
PROMPT = Prompt("kernel", "You write kernels. " * 50, "Write a softmax. " * 400)


def start_server(delay_s: float) -> tuple[subprocess.Popen[str], str]:
    """A model server and its address."""
    command = [sys.executable, "-m", "tests.model_server", "--port", "0", "--delay", str(delay_s)]
    root = Path(__file__).resolve().parents[1]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=root)
    assert process.stdout is not None
    found = re.search(r"http://127.0.0.1:\d+", process.stdout.readline())
    assert found is not None
    return process, found[0]


async def measure(directory: Path, provider: str, address: str, calls: int, concurrency: int) -> tuple[float, float]:
    """Wall and processor seconds of ``calls`` calls."""
    where = f'base_url = "{address}/v1"\napi = "responses"' if provider == "openai" else f'base_url = "{address}/"'
    table = f'[[models]]\nprovider = "{provider}"\nmodel = "m"\n{where}\nconcurrency = {concurrency}\n'
    config = parse_config('problems = ["builtin:quickstart/softmax"]\n' + table, directory / "config.toml")
    paths = create_session(directory, provider, config.frozen_toml(), "config.toml", 0)
    writer = EventWriter(paths)
    with SessionReader(paths) as reader:
        journal = Journal(writer, fold(reader.read()))
        caller = make_callers(config, journal.state, journal)["m"]
        sites = [CallSite("softmax", 1, "kernel", f"i{number}") for number in range(concurrency + calls)]
        partials = Partials(paths.directory)

        async def ask(site: CallSite) -> None:
            with partials.of(site) as on_text:
                await caller.call(site, PROMPT, on_text)

        await asyncio.gather(*(ask(site) for site in sites[:concurrency]))
        wall, processor = time.perf_counter(), time.process_time()
        await asyncio.gather(*(ask(site) for site in sites[concurrency:]))
        wall, processor = time.perf_counter() - wall, time.process_time() - processor
        assert journal.state.spending.total.calls == len(sites) and not journal.state.spending.total.failed
        await caller.close()
    writer.close()
    return wall, processor


async def bare(provider: str, address: str, calls: int, concurrency: int) -> tuple[float, float]:
    """The same calls through the SDK alone: no journal, no limits, no retries, none of our code."""
    places = asyncio.Semaphore(concurrency)
    async with bare_openai(address) if provider == "openai" else bare_gemini(address) as ask:

        async def one() -> None:
            async with places:
                await ask()

        await asyncio.gather(*(one() for _ in range(concurrency)))
        wall, processor = time.perf_counter(), time.process_time()
        await asyncio.gather(*(one() for _ in range(calls)))
        return time.perf_counter() - wall, time.process_time() - processor


@contextlib.asynccontextmanager
async def bare_openai(address: str) -> AsyncIterator[Callable[[], Awaitable[None]]]:
    from openai import AsyncOpenAI

    async with AsyncOpenAI(api_key="none", base_url=f"{address}/v1", max_retries=0) as sdk:

        async def ask() -> None:
            async for _ in await sdk.responses.create(
                model="m", instructions=PROMPT.system, input=PROMPT.user, stream=True, store=False
            ):
                pass

        yield ask


@contextlib.asynccontextmanager
async def bare_gemini(address: str) -> AsyncIterator[Callable[[], Awaitable[None]]]:
    from google.genai import Client
    from google.genai.types import GenerateContentConfig, HttpOptions

    sdk = Client(api_key="none", vertexai=False, http_options=HttpOptions(base_url=f"{address}/"))
    options = GenerateContentConfig(system_instruction=PROMPT.system)

    async def ask() -> None:
        async for _ in await sdk.aio.models.generate_content_stream(model="m", contents=PROMPT.user, config=options):
            pass

    try:
        yield ask
    finally:
        await sdk.aio.aclose()


@click.command()
@click.option("--concurrency", default=64, show_default=True)
@click.option("--repeats", default=3, show_default=True)
def main(concurrency: int, repeats: int) -> None:
    """Print one table."""
    table = Table(title=f"{concurrency} calls at once, best of {repeats}; load {os.getloadavg()[0]:.1f}")
    for name in ("through", "a call", "calls", "ideal s", "wall s", "over ideal", "CPU ms a call"):
        table.add_column(name, justify="left" if name == "through" else "right")
    logging.getLogger("httpx2").setLevel(logging.WARNING)
    for delay_s, rounds in CASES:
        process, address = start_server(delay_s)
        try:
            for provider in ("openai", "gemini"):
                calls, ideal = concurrency * rounds, rounds * delay_s
                with tempfile.TemporaryDirectory() as scratch:
                    figures = [
                        asyncio.run(measure(Path(scratch), provider, address, calls, concurrency))
                        for _ in range(repeats)
                    ]
                alone = [asyncio.run(bare(provider, address, calls, concurrency)) for _ in range(repeats)]
                for name, (wall, processor) in ((provider, min(figures)), (f"{provider} SDK", min(alone))):
                    table.add_row(
                        name,
                        f"{delay_s * 1000:g} ms",
                        str(calls),
                        f"{ideal:.2f}",
                        f"{wall:.3f}",
                        f"{(wall / ideal - 1) * 100:.1f} %",
                        f"{processor / calls * 1000:.2f}",
                    )
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(10)
    Console().print(table)


if __name__ == "__main__":
    main()
