"""Published prices, and prices from the config."""

from __future__ import annotations

import time
from email.utils import formatdate

import pytest

from engine.config.schema import AnthropicModel, CalledModel, CommandModel, GeminiModel, OpenAIModel
from engine.proposers.llm.calls.prices import Price
from engine.proposers.llm.clients.streaming import retry_after_s
from engine.session.records.model_calls import Usage

USAGE = Usage(input=100_000, output=10_000, cached=50_000)


def test_known_models_have_their_published_price() -> None:
    price = Price(OpenAIModel(provider="openai", model="gpt-5.5"))
    assert price.dollars(USAGE) == pytest.approx(0.05 * 5 + 0.05 * 0.5 + 0.01 * 30)


def test_the_model_that_answered_counts_where_the_list_has_it() -> None:
    price = Price(OpenAIModel(provider="openai", model="gpt-5.5"))
    assert price.dollars(USAGE, "gpt-5.4-mini") < price.dollars(USAGE) / 2  # type: ignore[operator]
    assert price.dollars(USAGE, "gpt-5.5-of-tomorrow") == price.dollars(USAGE)


def test_the_tier_that_served_counts() -> None:
    price = Price(OpenAIModel(provider="openai", model="gpt-5.5", service_tier="flex"))
    assert price.dollars(USAGE) == pytest.approx(price.dollars(USAGE, tier="default") / 2)  # type: ignore[operator]


def test_what_a_cache_writes_and_reads_has_prices_of_its_own() -> None:
    price = Price(AnthropicModel(provider="anthropic", model="claude-opus-5", service_tier="standard_only"))
    assert price.dollars(Usage(100_000, 10_000)) == pytest.approx(0.1 * 5 + 0.01 * 25)
    assert price.dollars(USAGE, tier="priority") == pytest.approx(0.05 * 5 + 0.05 * 0.5 + 0.01 * 25)
    assert price.dollars(Usage(100_000, cache_written=100_000)) == pytest.approx(0.1 * 6.25)


def test_long_prompts_cost_more() -> None:
    price = Price(GeminiModel(provider="gemini", model="gemini-2.5-pro"))
    short, long = price.dollars(Usage(100_000)), price.dollars(Usage(300_000))
    assert short is not None and long is not None and long > 3.5 * short


def test_the_worst_case_is_never_below_what_is_paid() -> None:
    for model in ("gpt-5.5", "gpt-5.6-sol"):
        price = Price(OpenAIModel(provider="openai", model=model, service_tier="auto"))
        worst = price.at_most(100_000, 10_000)
        for usage in (Usage(100_000, 10_000), USAGE, Usage(100_000, 10_000, cache_written=90_000)):
            for tier in ("default", "flex", "priority"):
                assert worst >= price.dollars(usage, tier=tier) > 0  # type: ignore[operator]


@pytest.mark.parametrize(
    "model",
    [
        OpenAIModel(provider="openai", model="gpt-of-tomorrow"),
        OpenAIModel(provider="openai", model="gpt-5.5", base_url="http://localhost:8000/v1"),
        GeminiModel(provider="gemini", model="gemini-of-tomorrow"),
        AnthropicModel(provider="anthropic", model="claude-of-tomorrow"),
        CommandModel(provider="command", command=("gpt-5.5",)),
    ],
)
def test_an_unknown_price_is_unknown(model: CalledModel) -> None:
    price = Price(model)
    assert not price.known
    assert price.dollars(USAGE) is price.at_most(1, 1) is None


def test_resellers_have_prices_of_their_own() -> None:
    assert Price(OpenAIModel(provider="openai", model="openai/gpt-5", base_url="https://openrouter.ai/api/v1")).known


def test_a_price_in_the_config_overrules_the_list() -> None:
    program = Price(CommandModel(provider="command", command=("agent",), input_price=1.0, output_price=2.0))
    assert program.dollars(USAGE) == program.at_most(100_000, 10_000) == pytest.approx(0.12)
    own = Price(OpenAIModel(provider="openai", model="gpt-5.5", input_price=1.0, output_price=2.0))
    assert own.dollars(USAGE) == pytest.approx(0.12)
    free = Price(OpenAIModel(provider="openai", model="llama", base_url="http://h/v1", input_price=0, output_price=0))
    assert free.known and free.dollars(USAGE) == 0.0


def test_waits_that_servers_ask_for() -> None:
    assert retry_after_s({"retry-after": "2"}) == 2.0
    assert retry_after_s({"retry-after": formatdate(time.time() + 30, usegmt=True)}) == pytest.approx(30, abs=2)
    assert retry_after_s({"retry-after": formatdate(0, usegmt=True)}) == 0.0
    assert retry_after_s({"retry-after": "soon"}) is None
    assert retry_after_s({}) is None
