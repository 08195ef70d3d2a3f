"""Messages between the judge and a runner. Each datagram of a Unix SEQPACKET socket contains a JSON object and file
descriptors.

Threat: forged-answer.
"""

from __future__ import annotations

import json
import os
import socket

TYPE_CHECKING = False  # Importing typing takes milliseconds.
if TYPE_CHECKING:
    from typing import Any

MAX_MESSAGE_BYTES = 1 << 17
"""Maximum size of a message. By default, Linux accepts datagrams of up to 208 KiB."""
MOST_BUFFERS = 4096
"""Maximum number of buffers in all slots, because a single message must list all of a runner's buffers."""


def send(sock: socket.socket, message: dict[str, Any], descriptors: tuple[int, ...] = ()) -> None:
    """Send a message. Raises ``OSError`` if the other process is gone."""
    data = json.dumps(message, separators=(",", ":")).encode()
    if descriptors:
        socket.send_fds(sock, [data], descriptors)
    else:
        sock.send(data)


def receive(sock: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    """Return the next message with its descriptors, or None if the other process is gone.

    Raises ``ValueError`` if a datagram is not a JSON object with valid text, because the other process may be hostile.
    """
    # A new buffer for the largest message in each call would cost two page faults.
    nbytes = sock.recv_into(bytearray(1), 1, socket.MSG_PEEK | socket.MSG_TRUNC)
    data, descriptors, _, _ = socket.recv_fds(sock, min(nbytes, MAX_MESSAGE_BYTES), 8)
    if not data:
        return None
    try:
        text = data.decode()
        message = json.loads(text)
        if "\\u" in text:  # Unpaired surrogates cannot be printed or encoded.
            json.dumps(message, ensure_ascii=False).encode()
        if not isinstance(message, dict):
            raise ValueError("not a JSON object")
    except (ValueError, RecursionError):
        for descriptor in descriptors:
            os.close(descriptor)
        raise
    return message, descriptors
