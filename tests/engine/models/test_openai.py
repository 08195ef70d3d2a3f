"""What only servers with OpenAI's protocols do: token counts that leave something out, and texts in parts."""

from __future__ import annotations

from typing import Any

import pytest

from engine.session.records.model_calls import Usage
from tests.engine.models.conftest import PROMPT, SITE, Engine, Wire, model_table
from tests.model_server import Do, ModelServer

MODEL = 'model = "m"'


def counts(wire: Wire, given: int | None, made: int | None, **others: Any) -> dict[str, Any]:
    """Return a usage object in the words of the protocol."""
    names = ("input_tokens", "output_tokens") if wire == "responses" else ("prompt_tokens", "completion_tokens")
    return {**dict(zip(names, (given, made), strict=True)), **others}


@pytest.mark.parametrize("wire", ["chat", "responses"])
@pytest.mark.parametrize(("total", "output"), [(14428, 4308), (11619, 1499), (0, 1499), (None, 1499)])
async def test_reasoning_tokens_that_only_the_total_includes_are_spent(
    wire: Wire, total: int | None, output: int, server: ModelServer, engine: Engine
) -> None:
    server.script(Do(text="done", counts=counts(wire, 10120, 1499, total_tokens=total)))
    async with engine.life(model_table(wire, server, MODEL)) as desk:
        await desk.caller.call(SITE, PROMPT)
        assert (desk.spent.usage, desk.spent.uncertain) == (Usage(input=10120, output=output), 0)


@pytest.mark.parametrize("wire", ["chat", "responses"])
@pytest.mark.parametrize(
    ("known", "total", "usage"),
    [
        ({"given": 50, "made": None}, 80, Usage(input=50, output=30)),
        ({"given": None, "made": None}, 80, Usage(output=80)),
        ({"given": 50, "made": None}, None, None),
        ({"given": None, "made": 30}, None, None),
    ],
)
async def test_a_reply_without_all_its_counts_is_a_reply(
    wire: Wire, known: dict[str, Any], total: int | None, usage: Usage | None, server: ModelServer, engine: Engine
) -> None:
    """If the counts do not say how many tokens were spent, the budget assumes the maximum."""
    server.script(Do(text="done", counts=counts(wire, **known, total_tokens=total)))
    async with engine.life(model_table(wire, server, MODEL)) as desk:
        reply = await desk.caller.call(SITE, PROMPT)
        assert (reply.text, reply.usage) == ("done", usage)
        assert desk.spent.uncertain == (usage is None)


async def test_a_usage_object_without_counts_is_no_usage(server: ModelServer, engine: Engine) -> None:
    server.script(Do(text="done", counts={"cost": 0.1}))
    async with engine.life(model_table("chat", server, MODEL)) as desk:
        assert (await desk.caller.call(SITE, PROMPT)).usage is None


async def test_thinking_that_comes_beside_the_text_is_left_out(server: ModelServer, engine: Engine) -> None:
    server.script(Do(text="a kernel of some length", parts=True))
    async with engine.life(model_table("chat", server, MODEL)) as desk:
        assert (await desk.caller.call(SITE, PROMPT)).text == "a kernel of some length"
