"""A program for the provider "command": it asks the model server on this machine what to do, and does it.

It runs as a script (``python -I -S agent.py PORT MODEL``) and imports as little as a quick start allows.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import time
from typing import Any


def main(port: int, model: str) -> None:
    prompt = sys.stdin.buffer.read().decode()
    body = json.dumps({"model": model, "prompt": prompt}).encode()
    key = os.environ.get("TEST_MODEL_KEY", "")
    head = f"POST /command HTTP/1.1\r\nauthorization: Bearer {key}\r\ncontent-length: {len(body)}\r\n\r\n"
    try:
        with socket.create_connection(("127.0.0.1", port)) as server:
            server.sendall(head.encode() + body)
            for line in _body(server).splitlines():
                act(*json.loads(line))
    except ConnectionRefusedError:
        say('kernel-tui-failure: {"kind": "connection"}')
        say('kernel-tui-usage: {"input_tokens": 0, "output_tokens": 0}')
        sys.exit(1)


def _body(server: socket.socket) -> bytes:
    with server.makefile("rb") as file:
        size = 0
        while (line := file.readline().strip().lower()) != b"":
            if line.startswith(b"content-length:"):
                size = int(line.partition(b":")[2])
        return file.read(size)


def act(what: str, *details: Any) -> None:
    match what:
        case "write":
            text, pause_s = details
            time.sleep(pause_s)
            sys.stdout.buffer.write(text.encode("latin-1"))
            sys.stdout.flush()
        case "say":
            say(*details)
        case "exit":
            sys.exit(*details)
        case "die":
            os.kill(os.getpid(), signal.SIGKILL)
        case "hang":
            time.sleep(3600)
        case "babble":
            while True:
                say("still thinking")
                time.sleep(0.05)


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
