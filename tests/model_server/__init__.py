"""Language model servers for tests, with real HTTP, the real wire formats, and scripted replies and faults.

OpenAI's Responses and chat completions and Gemini's generateContent, each streamed or whole; Anthropic's Messages,
streamed; and a program for the provider "command" that plays the same script. In a test::

    with ModelServer() as server:
        server.script(Do("rate_limit", retry_after="1"), Do("reply", text="done"))
        ... base_url=server.openai, server.gemini or server.anthropic, or command=server.command ...
        assert server.told == Usage(...)

From the command line, for whole searches: ``python -m tests.model_server --help``.
"""

from tests.model_server.asked import Asked
from tests.model_server.server import Do, ModelServer

__all__ = ["Asked", "Do", "ModelServer"]
