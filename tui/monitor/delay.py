"""Schedule a delayed call reliably.

Textual's ``set_timer`` silently drops a call whose delay has passed before the timer's task starts. That always happens
with a delay of microseconds, and sometimes on a busy machine.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from textual.message_pump import MessagePump


def after(node: MessagePump, seconds: float, callback: Callable[[], object]) -> asyncio.TimerHandle:
    """Run ``callback`` on ``node`` in ``seconds``, in order with its messages. The returned handle cancels the call."""
    return asyncio.get_running_loop().call_later(seconds, node.call_later, callback)
