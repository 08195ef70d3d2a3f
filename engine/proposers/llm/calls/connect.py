"""Create clients and callers for the models in a config's ``[[models]]`` tables."""

from __future__ import annotations

from engine.config.model_tables import AnthropicModel, CalledModel, CommandModel, GeminiModel, OpenAIModel
from engine.config.schema import Config
from engine.exit_codes import ExitCode
from engine.proposers.llm.calls.concurrency_limiter import Gate
from engine.proposers.llm.calls.ledger import Ledger
from engine.proposers.llm.calls.prices import Price
from engine.proposers.llm.calls.retrying_caller import Caller, Recorder, Retry
from engine.proposers.llm.clients.keys import key_for
from engine.proposers.llm.model_protocol import ModelClient
from engine.session.budget import NO_CAP, caps_of
from engine.session.state.session_state import SessionState


class PriceUnknown(Exception):
    """The config limits the cost in dollars, but a model's price is unknown."""

    exit_code = ExitCode.USAGE


def make_callers(
    config: Config, state: SessionState, recorder: Recorder, retry: Retry | None = None
) -> dict[str, Caller]:
    """Create a caller for every model that the engine calls over the network or as a program.

    Returns the callers by name. Raises ``KeyMissing`` or :class:`PriceUnknown`, so that a search that would fail never
    begins.
    """
    called = [model for model in config.models if isinstance(model, CalledModel)]
    ledger = Ledger(state.spending, lambda: caps_of(state, config))
    callers = {}
    for model in called:
        client, price = make_client(model, key_for(model)), Price(model)
        _check_price(config, state, model.label, price)
        callers[model.label] = Caller(model.label, client, price, Gate(model.concurrency), ledger, recorder, retry)
    return callers


def check_prices(config: Config) -> None:
    """Check that every model to which a dollar limit applies has a known price. Raises :class:`PriceUnknown`."""
    fresh = SessionState()
    for model in config.models:
        if isinstance(model, CalledModel):
            _check_price(config, fresh, model.label, Price(model))


def make_client(model: CalledModel, key: str) -> ModelClient:
    """Create a model's client. The client imports the SDK and connects on its first call."""
    match model:
        case OpenAIModel():
            from engine.proposers.llm.clients.openai_client import OpenAIClient

            return OpenAIClient(model, key)
        case GeminiModel():
            from engine.proposers.llm.clients.gemini_client import GeminiClient

            return GeminiClient(model, key)
        case AnthropicModel():
            from engine.proposers.llm.clients.anthropic_client import AnthropicClient

            return AnthropicClient(model, key)
        case CommandModel():
            from engine.proposers.llm.clients.command.client import CommandClient

            return CommandClient(model, key)
    raise TypeError(f"no client for {type(model).__name__}")


def _check_price(config: Config, state: SessionState, model: str, price: Price) -> None:
    caps = caps_of(state, config)
    capped = [cap for cap in (caps.session, caps.problem, caps.models.get(model, NO_CAP)) if cap.dollars is not None]
    if capped and not price.known:
        raise PriceUnknown(
            f"{model} has no known price, but the limit of ${capped[0].dollars:g} requires one. Set input_price and "
            "output_price in the model's [[models]] table (dollars per million tokens, 0 for your own server), or "
            "limit tokens instead"
        )
