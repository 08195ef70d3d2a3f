"""What only Anthropic's protocol has: error types, thinking, effort, and tokens that are written to a cache."""

from __future__ import annotations

from typing import Any

import pytest

from engine.config.schema import ConfigError, parse_config
from engine.proposers.llm.calls.retrying_caller import Retry
from engine.proposers.llm.model_protocol import CallFailed, Prompt
from engine.session.records.model_calls import FailureKind, Usage
from tests.engine.models.conftest import PROMPT, SITE, Engine, model_table
from tests.model_server import Do, ModelServer

MODEL = 'model = "m"'


@pytest.mark.parametrize(
    ("do", "failure", "words"),
    [
        (Do("overloaded", message="Overloaded"), "server", "529: Overloaded"),
        (Do("quota", message="Please check your billing"), "quota", "402: Please check your billing"),
        (Do("bad_request", message="Your credit balance is too low to access it."), "quota", "400: Your credit"),
        (Do("bad_request", message="max_tokens: too large"), "bad_request", "400: max_tokens: too large"),
    ],
)
async def test_errors_have_the_kind_of_their_type(
    do: Do, failure: FailureKind, words: str, server: ModelServer, engine: Engine
) -> None:
    server.script(do)
    async with engine.life(model_table("anthropic", server, MODEL), Retry(patience_s=0.0)) as desk:
        with pytest.raises(CallFailed):
            await desk.caller.call(SITE, PROMPT)
        (failed,) = desk.failures()
        assert (failed.failure, failed.usage) == (failure, Usage())
        assert failed.message.startswith(words)


@pytest.mark.parametrize(
    ("keys", "sent"),
    [
        ("", {}),
        ('effort = "max"', {"output_config": {"effort": "max"}}),
        ('thinking = "adaptive"', {"thinking": {"type": "adaptive"}}),
        ("thinking_budget = 2000", {"thinking": {"type": "enabled", "budget_tokens": 2000}}),
        ('service_tier = "standard_only"', {"service_tier": "standard_only"}),
    ],
)
async def test_the_config_decides_how_a_model_thinks(
    keys: str, sent: dict[str, Any], server: ModelServer, engine: Engine
) -> None:
    table = model_table("anthropic", server, f"{MODEL}\n{keys}").replace("_tokens = 1000", "_tokens = 4000")
    async with engine.life(table) as desk:
        await desk.caller.call(SITE, PROMPT)
    (asked,) = server.requests
    assert asked.body == {
        "model": "m",
        "max_tokens": 4000,
        "system": PROMPT.system,
        "messages": [{"role": "user", "content": PROMPT.user}],
        "stream": True,
        **sent,
    }


async def test_effort_and_structure_go_together(server: ModelServer, engine: Engine) -> None:
    schema = {"type": "object", "properties": {}, "required": [], "additionalProperties": False}
    async with engine.life(model_table("anthropic", server, f'{MODEL}\neffort = "low"')) as desk:
        await desk.caller.call(SITE, Prompt("ideas", "s", "u", schema))
    wanted = {"effort": "low", "format": {"type": "json_schema", "schema": schema}}
    assert server.requests[0].body["output_config"] == wanted


async def test_tokens_of_the_cache_are_input_tokens(server: ModelServer, engine: Engine) -> None:
    server.script(Do(text="done", cached=4, cache_written=3, reasoning=50, tier="priority"))
    async with engine.life(model_table("anthropic", server, MODEL)) as desk:
        reply = await desk.caller.call(SITE, PROMPT)
    assert reply.usage == server.books.told
    assert reply.usage is not None and (reply.usage.cached, reply.usage.cache_written) == (4, 3)
    assert (reply.text, reply.tier) == ("done", "priority")


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ('thinking = "adaptive"\nthinking_budget = 2000', "sets both thinking and thinking_budget"),
        (
            "thinking_budget = 2000\nmax_output_tokens = 2000",
            "use less than the output limit, 2000 tokens",
        ),
        ("thinking_budget = 100", "thinking_budget"),
        ('api_key = "sk-secret"', "ANTHROPIC_API_KEY"),
    ],
)
def test_settings_that_the_provider_would_refuse(keys: str, words: str) -> None:
    text = f'problems = ["builtin:quickstart/softmax"]\n[[models]]\nprovider = "anthropic"\n{MODEL}\n{keys}\n'
    with pytest.raises(ConfigError) as caught:
        parse_config(text, "config.toml")
    assert words in str(caught.value) and "sk-secret" not in str(caught.value)
