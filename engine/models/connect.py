"""From the ``[[models]]`` tables of a config to models that can be called."""

from __future__ import annotations

from engine.budget import NO_CAP, caps_of
from engine.config import Config
from engine.config_models import GeminiModel, OpenAIModel
from engine.exit_codes import ExitCode
from engine.models.caller import Caller, Recorder, Retry
from engine.models.gate import Gate
from engine.models.keys import key_for
from engine.models.ledger import Ledger
from engine.models.prices import Price
from engine.models.protocol import ModelClient
from engine.state import SessionState


class PriceUnknown(Exception):
    """A limit in dollars, and a model of which nobody knows what it costs."""

    exit_code = ExitCode.USAGE


def make_callers(
    config: Config, state: SessionState, recorder: Recorder, retry: Retry | None = None
) -> dict[str, Caller]:
    """Every model of the config that is called over a network, by name.

    Raises ``KeyMissing`` and :class:`PriceUnknown`: a search that cannot work must not begin.
    """
    remote = [model for model in config.models if isinstance(model, OpenAIModel | GeminiModel)]
    ledger = Ledger(state.spending, lambda: caps_of(state, config))
    callers = {}
    for model in remote:
        client, price = make_client(model, key_for(model)), Price(model)
        _check_price(config, state, model.label, price)
        callers[model.label] = Caller(model.label, client, price, Gate(model.concurrency), ledger, recorder, retry)
    return callers


def check_prices(config: Config) -> None:
    """What :func:`make_callers` would say of prices, before a search begins. Raises :class:`PriceUnknown`."""
    fresh = SessionState()
    for model in config.models:
        if isinstance(model, OpenAIModel | GeminiModel):
            _check_price(config, fresh, model.label, Price(model))


def make_client(model: OpenAIModel | GeminiModel, key: str) -> ModelClient:
    """The client for a model. Nothing is imported or connected before its first call."""
    if isinstance(model, OpenAIModel):
        from engine.models.openai_client import OpenAIClient

        return OpenAIClient(model, key)
    from engine.models.gemini_client import GeminiClient

    return GeminiClient(model, key)


def _check_price(config: Config, state: SessionState, model: str, price: Price) -> None:
    caps = caps_of(state, config)
    capped = [cap for cap in (caps.session, caps.problem, caps.models.get(model, NO_CAP)) if cap.dollars is not None]
    if capped and not price.known:
        raise PriceUnknown(
            f"{model} has no known price, and dollars are limited (${capped[0].dollars:g}): give input_price and "
            "output_price in its [[models]] table (dollars for a million tokens, 0 for a server of your own), or limit "
            "tokens"
        )
