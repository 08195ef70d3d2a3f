"""Messages between judge and runner: one JSON object per datagram of a Unix SEQPACKET socket, descriptors beside it."""

from __future__ import annotations

import json
import os
import socket
from typing import Any

MAX_MESSAGE_BYTES = 1 << 17
"""Linux takes datagrams of up to 208 KiB, unless configured otherwise."""
MOST_BUFFERS = 4096
"""Of all slots together: a runner is told in one message where they are, and tells in one where its results lie."""


def send(sock: socket.socket, message: dict[str, Any], descriptors: tuple[int, ...] = ()) -> None:
    """Raises ``OSError`` when the other side is gone."""
    data = json.dumps(message, separators=(",", ":")).encode()
    if descriptors:
        socket.send_fds(sock, [data], descriptors)
    else:
        sock.send(data)


def receive(sock: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    """The next message with its descriptors, or None when the other side is gone.

    Raises ``ValueError`` for a datagram that is no JSON object of text: the other side may be hostile.
    """
    data, descriptors, _, _ = socket.recv_fds(sock, MAX_MESSAGE_BYTES, 8)
    if not data:
        return None
    try:
        text = data.decode()
        message = json.loads(text)
        if "\\u" in text:  # halves of surrogate pairs, which nobody could print or pass on
            json.dumps(message, ensure_ascii=False).encode()
        if not isinstance(message, dict):
            raise ValueError("not a JSON object")
    except (ValueError, RecursionError):
        for descriptor in descriptors:
            os.close(descriptor)
        raise
    return message, descriptors
