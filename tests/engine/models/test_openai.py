"""What only servers with OpenAI's protocols do: token counts that leave something out."""

from __future__ import annotations

from typing import Any

import pytest

from engine.session.records.model_calls import Usage
from tests.engine.models.conftest import PROMPT, SITE, Engine, Wire, model_table
from tests.model_server import Do, ModelServer

MODEL = 'model = "m"'


def counts(wire: Wire, given: int, made: int, **others: Any) -> dict[str, Any]:
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
