"""Something to be done a moment later, for certain.

Textual's ``set_timer`` leaves out, without a word, a call that is late before the timer's task has begun to wait: one
of some microseconds always, any other where the system takes the processor away just then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from textual.message_pump import MessagePump


def after(node: MessagePump, seconds: float, callback: Callable[[], object]) -> asyncio.TimerHandle:
    """Have ``node`` call back in ``seconds``, in its turn among its messages. The handle cancels it."""
    return asyncio.get_running_loop().call_later(seconds, node.call_later, callback)
