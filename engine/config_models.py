"""The ``[[models]]`` tables of a config: one for each proposer. Re-exported by ``engine.config``."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, NonNegativeFloat, model_validator

from engine.config_values import BaseUrl, KeyVariable, Positive, ResolvedPath, Table, refusal
from engine.proposers.protocol import Role

OUTPUT_LIMIT = 32_768
"""Output tokens of one call, thoughts included, unless the config says otherwise; half as many for a server of one's
own, whose whole context is often 32,768."""


class SpendLimits(Table):
    """How much may go to models. What is not given is not limited."""

    dollars: Positive | None = None
    tokens: int | None = Field(default=None, ge=1)
    """Input and output tokens of all models together."""
    calls: int | None = Field(default=None, ge=1)
    """Calls to models; every attempt counts."""


class _Proposer(Table):
    weight: Positive = 1.0
    """Share of the questions that go to this proposer, against the weights of the others."""
    roles: Annotated[tuple[Role, ...], Field(min_length=1, strict=False)] = ("ideas", "code", "fixes")
    """What it is asked for."""


class PlaybookModel(_Proposer):
    """The built-in proposer: no network, no key."""

    provider: Literal["playbook"] = "playbook"


class RemoteModel(_Proposer):
    """What all models behind a network have in common."""

    model: str = Field(min_length=1)
    name: str | None = Field(default=None, min_length=1, max_length=40)
    """What it is called on screen and in the session; the model unless given."""
    base_url: BaseUrl | None = None
    key_env: KeyVariable | None = None
    """Environment variable that holds the key; for a ``base_url`` no key is sent unless this is given."""
    concurrency: int = Field(default=4, ge=1, le=1024)
    """Calls in flight at once."""
    timeout_s: Positive = 600.0
    """Seconds without a byte from the server after which an attempt is given up."""
    max_output_tokens: int | None = Field(default=None, ge=256)
    """Most output tokens of a call, thoughts included; kept back from the budget for every call under way."""
    structured: bool = True
    """Ask for ideas as JSON that the server checks against a schema; off for servers that cannot."""
    input_price: NonNegativeFloat | None = None
    output_price: NonNegativeFloat | None = None
    """Dollars for a million tokens, where the published prices are wrong or unknown."""
    budget: SpendLimits = SpendLimits()
    """Limits of this model alone."""

    @property
    def label(self) -> str:
        return self.name or self.model

    @property
    def output_limit(self) -> int:
        """Most output tokens of a call."""
        return self.max_output_tokens or (OUTPUT_LIMIT if self.base_url is None else OUTPUT_LIMIT // 2)

    @model_validator(mode="after")
    def _both_prices(self) -> RemoteModel:
        if (self.input_price is None) != (self.output_price is None):
            raise refusal("has one of input_price and output_price, allowed: both or neither")
        return self


class OpenAIModel(RemoteModel):
    """OpenAI, or any server that speaks its chat protocol (``base_url``: vLLM, Ollama, llama.cpp, OpenRouter)."""

    provider: Literal["openai"]
    api: Literal["responses", "chat"] | None = None
    """``responses`` at OpenAI, ``chat`` for a ``base_url``, unless given."""
    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh"] | None = None
    """How long it thinks; what a model allows differs."""
    service_tier: Literal["auto", "default", "flex", "priority"] | None = None

    @property
    def key_variable(self) -> str | None:
        """The environment variable with the key, None where no key is sent."""
        return self.key_env or ("OPENAI_API_KEY" if self.base_url is None else None)


class GeminiModel(RemoteModel):
    """Google Gemini. ``thinking_budget`` (tokens) is for the 2.5 family, ``thinking_level`` for 3 and later."""

    provider: Literal["gemini"]
    thinking_level: Literal["minimal", "low", "medium", "high"] | None = None
    thinking_budget: int | None = Field(default=None, ge=-1)
    service_tier: Literal["standard", "flex", "priority"] | None = None

    @property
    def key_variable(self) -> str | None:
        """The environment variable with the key, None where no key is sent."""
        return self.key_env or ("GEMINI_API_KEY" if self.base_url is None else None)

    @model_validator(mode="after")
    def _one_kind_of_thinking(self) -> GeminiModel:
        if self.thinking_level is not None and self.thinking_budget is not None:
            raise refusal("has thinking_level and thinking_budget, allowed: one of them")
        return self


class ManualModel(_Proposer):
    """A person who writes ideas and kernels by hand."""

    provider: Literal["manual"]


class ReplayModel(_Proposer):
    """The recorded answers of an earlier session."""

    provider: Literal["replay"]
    session: ResolvedPath


ModelConfig = Annotated[
    PlaybookModel | OpenAIModel | GeminiModel | ManualModel | ReplayModel, Field(discriminator="provider")
]
MODEL_TABLES: dict[str, type[Table]] = {
    "playbook": PlaybookModel,
    "openai": OpenAIModel,
    "gemini": GeminiModel,
    "manual": ManualModel,
    "replay": ReplayModel,
}
