"""Run a model server from the command line, for whole searches. Print its addresses, and at the end its totals."""

from __future__ import annotations

import random
import signal
import time
from importlib import import_module
from typing import get_args

import click
import msgspec

from tests.model_server.server import Do, Kind, ModelServer, echo


@click.command()
@click.option("--port", default=8123, show_default=True, help="0: any free one.")
@click.option("--author", default="", help="MODULE:FUNCTION that takes an Asked and returns the reply.")
@click.option("--faults", default="", help=f"Comma-separated, in turn: {', '.join(get_args(Kind)[1:])}.")
@click.option("--every", default=5, show_default=True, help="A fault comes at random, one in so many requests.")
@click.option("--delay", default=0.2, show_default=True, help="Seconds before the first byte.")
@click.option("--seed", default=0, show_default=True)
def main(port: int, author: str, faults: str, every: int, delay: float, seed: int) -> None:
    """Serve OpenAI's, Gemini's and Anthropic's protocols on this machine until SIGINT or SIGTERM."""
    module, _, function = author.partition(":")
    write = getattr(import_module(module), function) if author else echo
    kinds = [kind.strip() for kind in faults.split(",") if kind.strip()]
    random.seed(seed)

    class Faulty(ModelServer):
        def next_step(self) -> Do:
            if kinds and random.randrange(every) == 0:
                return Do(random.choice(kinds), delay_s=delay, retry_after="1")  # type: ignore[arg-type]
            return super().next_step()

    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with Faulty(port=port, author=write, default=Do(delay_s=delay)) as server:
        click.echo(f"openai: {server.openai}\ngemini: {server.gemini}\nanthropic: {server.anthropic}")
        try:
            while True:
                time.sleep(3600)
        except KeyboardInterrupt:
            click.echo(msgspec.json.encode(server.books).decode())


if __name__ == "__main__":
    main()
