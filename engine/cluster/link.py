"""The engine's connection to the scheduler. The link restores a lost connection for as long as the engine runs."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from engine.cluster import dask_settings
from engine.cluster import messages as m
from engine.cluster.certificates import faults, security

AGAIN_S = 2.0
"""Seconds between two attempts to connect."""
LOOK_S = 0.5
_SEND_S = 0.001
"""Maximum time for which Dask delays a message to collect others, in seconds. Dask's default is 10 ms."""


class Link:
    """The engine's client of the scheduler at ``address``.

    - ``on_beat``: called for each heartbeat of a worker
    - ``on_leaving``: called when a worker leaves
    - ``on_strange_beat``: called for each heartbeat that this release cannot read
    - ``on_report``: called for each report on an attempt of the engine ``engine``
    - ``on_state``: called with "" when the link is up, and with the reason when it is down
    """

    def __init__(
        self,
        address: str,
        certificates: Path,
        engine: str,
        on_beat: Callable[[m.Beat], None],
        on_leaving: Callable[[m.Leaving], None],
        on_strange_beat: Callable[[m.AnyBeat], None],
        on_report: Callable[[m.Report], None],
        on_state: Callable[[str], None],
    ) -> None:
        self._address, self._engine = address, engine
        self._certificates, self._security = certificates, security(certificates, "engine")
        self._on_beat, self._on_leaving, self._on_strange_beat = on_beat, on_leaving, on_strange_beat
        self._on_report, self._on_state = on_report, on_state
        self._client: Any = None
        self._task: asyncio.Task[None] | None = None
        self._up: bool | None = None

    def start(self) -> None:
        dask_settings.apply()
        self._task = asyncio.create_task(self._keep())

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
        await self._drop()

    def submit(self, order: m.Order, address: str, resource: str | None) -> Any:
        """Send an order to a worker immediately. Returns a Dask future. To cancel the order, release the future.

        Dask must not move or retry the task, because the engine chooses devices and retries. Raises ``ConnectionError``
        while the link is down.
        """
        from engine.cluster.worker.plugin import carry_out

        if self._client is None:
            raise ConnectionError("the engine has no connection to the scheduler")
        return self._client.submit(
            carry_out,
            m.encode(order),
            key=order.attempt,
            pure=False,
            retries=0,
            workers=[address],
            allow_other_workers=False,
            resources={resource: 1} if resource is not None else None,
        )

    async def alive(self, timeout_s: float) -> bool:
        """Return whether the scheduler answers. A network failure may leave a connection that looks open."""
        client = self._client
        try:
            await asyncio.wait_for(client.scheduler.identity(n_workers=0), timeout_s)
        except Exception:
            return False
        return client is self._client

    async def reset(self) -> None:
        """Close the current connection, and connect again."""
        await self._drop()

    async def _keep(self) -> None:
        """Connect, and reconnect after each loss of the connection. Dask's own reconnection would forget the
        engine's topics (distributed#5667).
        """
        while True:
            client = self._client
            if client is None or client.status != "running":
                if client is not None:
                    self._tell("the connection to the scheduler broke")
                await self._drop()
                await self._connect()
            await asyncio.sleep(LOOK_S if self._client is not None else AGAIN_S)

    async def _connect(self) -> None:
        from distributed import Client

        client: Any = None
        try:
            # The constructor reads the certificates, which may be incomplete while a person renews them.
            client = Client(
                self._address,
                security=self._security,
                asynchronous=True,  # The client runs in the engine's own event loop.
                set_as_default=False,
                timeout=dask_settings.DEAD_S,
                name="kernel-tui",
            )
            await client
            client.scheduler_comm.interval = _SEND_S
            client.subscribe_topic(m.BEATS, self._hear_worker)
            client.subscribe_topic(m.topic_of(self._engine), self._hear_report)
        except Exception as error:
            await _close(client)
            self._tell("; ".join(faults(self._certificates, "engine")) or in_words(error))
            return
        self._client = client
        self._tell("")

    async def _drop(self) -> None:
        client, self._client = self._client, None
        await _close(client)

    def _tell(self, trouble: str) -> None:
        up = not trouble
        if up != self._up:
            self._up = up
            self._on_state(trouble)

    def _hear_worker(self, event: tuple[float, str]) -> None:
        try:
            message = m.decode_from_worker(event[1])
        except msgspec.MsgspecError:  # The worker has another version.
            with contextlib.suppress(msgspec.MsgspecError):
                self._on_strange_beat(m.decode_any_beat(event[1]))
            return
        match message:
            case m.Beat() as beat:
                self._on_beat(beat)
            case m.Leaving() as leaving:
                self._on_leaving(leaving)

    def _hear_report(self, event: tuple[float, str]) -> None:
        self._on_report(m.decode_report(event[1]))


async def _close(client: Any) -> None:
    if client is not None:
        with contextlib.suppress(Exception):
            await asyncio.wait_for(client.close(), AGAIN_S)


def in_words(error: BaseException) -> str:
    """Return a short reason for a failed connection. Dask wraps TLS errors in other errors (distributed#5039)."""
    chain, seen = [], error
    while seen is not None and seen not in chain:
        chain.append(seen)
        seen = seen.__cause__ or seen.__context__  # type: ignore[assignment]
    texts = [" ".join(str(one).split()) for one in chain]
    if tls := next((text for text in texts if "SSL" in text or "certificate" in text.lower()), None):
        return (
            f"the scheduler and this host do not trust each other's certificates ({tls}); copy both hosts' "
            "certificates from the same directory, and run kernel-tui doctor CONFIG"
        )
    return next((text for text in reversed(texts) if text), type(error).__name__)
