"""Schedule a delayed call reliably.

Textual's ``set_timer`` silently drops a call whose delay has passed before the timer's task starts. Textual always
drops calls with a delay of microseconds. On a busy machine, Textual sometimes drops other calls too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from textual.message_pump import MessagePump


def after(node: MessagePump, seconds: float, callback: Callable[[], object]) -> asyncio.TimerHandle:
    """Run ``callback`` on ``node`` after ``seconds``, in order with the node's messages.

    The returned handle cancels the call.
    """
    return asyncio.get_running_loop().call_later(seconds, node.call_later, callback)
