"""The ``[[models]]`` tables of a config, one per proposer. ``engine.config.schema`` re-exports them."""

from __future__ import annotations

from abc import abstractmethod
from pathlib import PurePath
from typing import Annotated, Literal, Self

from pydantic import Field, NonNegativeFloat, model_validator

from engine.config.roles import Role
from engine.config.values import (
    BaseUrl,
    Command,
    EnvironmentName,
    KeyVariable,
    Positive,
    ResolvedPath,
    Table,
    refusal,
)

OUTPUT_LIMIT = 32_768
"""Default output-token limit per call, including reasoning tokens. Models with a ``base_url`` get half of this limit,
because self-hosted servers often have a context of only 32,768 tokens.
"""


LEAST_OUTPUT = 256
"""Smallest allowed value of ``max_output_tokens``."""


class SpendLimits(Table):
    """Spending limits for language models. An omitted key means no limit."""

    dollars: Positive | None = None
    """Maximum cost of model calls, in dollars."""
    tokens: int | None = Field(default=None, ge=1)
    """Maximum number of tokens, input plus output."""
    calls: int | None = Field(default=None, ge=1)
    """Maximum number of model calls. Retries count as calls."""


class _Proposer(Table):
    weight: Positive = 1.0
    """Share of requests that go to this proposer, relative to the weights of the other proposers."""
    roles: Annotated[tuple[Role, ...], Field(min_length=1, strict=False)] = ("ideas", "code", "fixes")
    """Tasks that this proposer may receive. ``fixes`` means repairs of failed kernels."""


class PlaybookModel(_Proposer):
    """The built-in proposer, which needs neither a network nor an API key."""

    provider: Literal["playbook"] = "playbook"


class CalledModel(_Proposer):
    """Settings shared by all models that the engine calls, over the network or as a program."""

    name: str | None = Field(default=None, min_length=1, max_length=40)
    """Name shown on screen and stored in the session. Default: the value of ``model``."""
    key_env: KeyVariable | None = None
    """Name of the environment variable that contains the API key. Default: ``OPENAI_API_KEY``, ``GEMINI_API_KEY`` or
    ``ANTHROPIC_API_KEY``. A server at ``base_url`` receives a key only if you set ``key_env``.
    """
    concurrency: int = Field(default=4, ge=1, le=1024)
    """Maximum number of calls in flight. After a 429 response, the client halves this number and then slowly raises it
    again.
    """
    timeout_s: Positive = 600.0
    """An attempt fails if the server sends no data for this many seconds."""
    max_output_tokens: int | None = Field(default=None, ge=LEAST_OUTPUT)
    """Maximum number of output tokens per call, including reasoning tokens. The budget reserves this number of tokens
    for each call in flight. Default: 32768, or 16384 with a ``base_url``.
    """
    input_price: NonNegativeFloat | None = None
    """Price in dollars per million input tokens. Set this key if the built-in price is wrong or missing."""
    output_price: NonNegativeFloat | None = None
    """Price in dollars per million output tokens."""
    budget: SpendLimits = SpendLimits()
    """Limits on ``dollars``, ``tokens`` and ``calls`` for this model only."""

    @property
    @abstractmethod
    def label(self) -> str:
        """The model's name on screen and in the session."""

    @property
    def output_limit(self) -> int:
        """Maximum number of output tokens per call."""
        return self.max_output_tokens or OUTPUT_LIMIT

    @property
    def key_variable(self) -> str | None:
        """Name of the environment variable with the API key. None means that the model needs no key."""
        return self.key_env

    @model_validator(mode="after")
    def _both_prices(self) -> Self:
        if (self.input_price is None) != (self.output_price is None):
            raise refusal("this table sets only one of input_price and output_price; set both or neither")
        return self


class RemoteModel(CalledModel):
    """Settings shared by all models that the engine calls over the network."""

    model: str = Field(min_length=1)
    """The model's name on its server."""
    base_url: BaseUrl | None = None
    """URL of another server that supports the provider's API."""
    structured: bool = True
    """Whether to request ideas as structured output: JSON that follows a schema. Set this key to false for servers
    without structured output.
    """

    @property
    def label(self) -> str:
        return self.name or self.model

    @property
    def output_limit(self) -> int:
        return self.max_output_tokens or (OUTPUT_LIMIT if self.base_url is None else OUTPUT_LIMIT // 2)


class OpenAIModel(RemoteModel):
    """OpenAI, or any server at ``base_url`` with an OpenAI-compatible API (vLLM, Ollama, llama.cpp, OpenRouter)."""

    provider: Literal["openai"]
    api: Literal["responses", "chat"] | None = None
    """API that the client uses. Default: ``responses`` for OpenAI, ``chat`` with a ``base_url``."""
    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh"] | None = None
    """Reasoning effort. The allowed values depend on the model."""
    service_tier: Literal["auto", "default", "flex", "priority"] | None = None
    """Service tier of the provider. ``flex`` is cheaper and slower."""

    @property
    def key_variable(self) -> str | None:
        """Name of the environment variable with the API key. None means that the client sends no key."""
        return self.key_env or ("OPENAI_API_KEY" if self.base_url is None else None)


class GeminiModel(RemoteModel):
    """Google Gemini. Use ``thinking_budget`` (tokens) for Gemini 2.5, and ``thinking_level`` for Gemini 3 or later."""

    provider: Literal["gemini"]
    thinking_level: Literal["minimal", "low", "medium", "high"] | None = None
    """Thinking level, for Gemini 3 and later."""
    thinking_budget: int | None = Field(default=None, ge=-1)
    """Maximum number of thinking tokens, for Gemini 2.5."""
    service_tier: Literal["standard", "flex", "priority"] | None = None
    """Service tier of the provider. ``flex`` is cheaper and slower."""

    @property
    def key_variable(self) -> str | None:
        """Name of the environment variable with the API key. None means that the client sends no key."""
        return self.key_env or ("GEMINI_API_KEY" if self.base_url is None else None)

    @model_validator(mode="after")
    def _one_kind_of_thinking(self) -> GeminiModel:
        if self.thinking_level is not None and self.thinking_budget is not None:
            raise refusal("this table sets both thinking_level and thinking_budget; remove one of them")
        return self


class AnthropicModel(RemoteModel):
    """Anthropic's Claude, or any server at ``base_url`` that supports Anthropic's Messages API."""

    provider: Literal["anthropic"]
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    """Effort that the model spends on a reply, including thinking. The allowed values depend on the model."""
    thinking: Literal["adaptive", "disabled"] | None = None
    """Thinking mode. ``adaptive``: the model decides how much to think. ``disabled``: the model does not think. The
    default depends on the model.
    """
    thinking_budget: int | None = Field(default=None, ge=1024)
    """Maximum number of thinking tokens, for models without adaptive thinking. This number must be less than the output
    limit.
    """
    service_tier: Literal["auto", "standard_only"] | None = None
    """Service tier of the provider. ``auto`` uses the account's priority capacity, if any."""

    @property
    def key_variable(self) -> str | None:
        """Name of the environment variable with the API key. None means that the client sends no key."""
        return self.key_env or ("ANTHROPIC_API_KEY" if self.base_url is None else None)

    @model_validator(mode="after")
    def _thinking_fits(self) -> AnthropicModel:
        if self.thinking is not None and self.thinking_budget is not None:
            raise refusal("this table sets both thinking and thinking_budget; remove one of them")
        if self.thinking_budget is not None and self.thinking_budget >= self.output_limit:
            raise refusal(
                f"thinking_budget is {self.thinking_budget}; use less than the output limit, {self.output_limit} tokens"
            )
        return self


class CommandModel(CalledModel):
    """Any program that reads the prompt from stdin and writes the reply to stdout."""

    provider: Literal["command"]
    command: Command
    """The program and its arguments, such as ``["my-agent", "--print"]``. A program name with a ``/`` is a path
    relative to the config file's directory. The engine searches ``PATH`` for other programs.
    """
    environment: Annotated[tuple[EnvironmentName, ...], Field(strict=False)] = ("HOME", "LANG", "PATH")
    """Names of the environment variables that the program receives, in addition to ``key_env``. The program receives no
    other variables.
    """
    name: str | None = Field(default=None, min_length=1, max_length=40)
    """Name shown on screen and stored in the session. Default: the program's file name."""
    key_env: KeyVariable | None = None
    """Name of the environment variable with the program's API key. Only the program receives this variable; kernels
    under test and compilers do not. Omit ``key_env`` if the program needs no API key.
    """
    concurrency: int = Field(default=4, ge=1, le=1024)
    """Maximum number of the program's processes that run in parallel. The engine halves this number after the program
    reports a ``rate_limit`` failure, and then slowly raises it again.
    """
    timeout_s: Positive = 1800.0
    """Time limit for a call in seconds. After this time, the engine kills the program and all its descendants."""
    max_output_tokens: int | None = Field(default=None, ge=LEAST_OUTPUT)
    """Number of output tokens that the budget reserves for each call in flight. The engine does not tell the program
    this number. Default: 32768.
    """
    input_price: NonNegativeFloat | None = None
    """Price in dollars per million input tokens. A limit on dollars requires this key. Set the key to 0 if calls cost
    nothing.
    """

    @property
    def label(self) -> str:
        return self.name or PurePath(self.command[0]).name[:40]


class ManualModel(_Proposer):
    """A person who answers prompts by hand."""

    provider: Literal["manual"]


class ReplayModel(_Proposer):
    """A replay of an earlier session's recorded answers."""

    provider: Literal["replay"]
    session: ResolvedPath
    """The recorded session's directory."""


ModelConfig = Annotated[
    PlaybookModel | OpenAIModel | GeminiModel | AnthropicModel | CommandModel | ManualModel | ReplayModel,
    Field(discriminator="provider"),
]
MODEL_TABLES: dict[str, type[Table]] = {
    "playbook": PlaybookModel,
    "openai": OpenAIModel,
    "gemini": GeminiModel,
    "anthropic": AnthropicModel,
    "command": CommandModel,
    "manual": ManualModel,
    "replay": ReplayModel,
}
