"""Token prices: the price list in the ``genai-prices`` package (no network), or the prices in the config.

An unknown price is None, never 0. The list has no prices for programs, which may report their own cost.
"""

from __future__ import annotations

from engine.config.model_tables import AnthropicModel, CalledModel, GeminiModel, OpenAIModel
from engine.session.records.model_calls import Usage

_PROVIDER = {"openai": "openai", "gemini": "google", "anthropic": "anthropic"}
_Listed = OpenAIModel | GeminiModel | AnthropicModel
_DEAREST_TIERS = ("default", "priority")
"""The service tiers that the provider may use for a request with the "auto" tier. The provider's project settings
select the tier, and only the reply names it.
"""


class Price:
    """The token prices of one model in a config. The first use imports the price list, which takes 0.25 s."""

    def __init__(self, model: CalledModel) -> None:
        self._model = model
        self._listing = model if isinstance(model, _Listed) else None
        self._tier = (self._listing.service_tier if self._listing is not None else None) or ""
        self._unlisted: set[str] = set()

    @property
    def known(self) -> bool:
        return self.dollars(Usage(1, 1)) is not None

    def dollars(self, usage: Usage, answered: str = "", tier: str = "") -> float | None:
        """Compute the cost of ``usage`` in dollars; None if unknown.

        ``answered`` is the model name that the server reported. If the price list does not contain this name, use the
        requested name. ``tier`` is the service tier that the server reported.
        """
        model = self._model
        if model.input_price is not None and model.output_price is not None:
            return (usage.input * model.input_price + usage.output * model.output_price) / 1e6
        if (listing := self._listing) is None:
            return None
        tier = tier or self._tier
        found = self._listed(listing, usage, answered, tier) if answered else None
        return found if found is not None else self._listed(listing, usage, listing.model, tier)

    def at_most(self, input_tokens: int, output_tokens: int) -> float | None:
        """Return a call's maximum cost: the most expensive tier, no cache reads, and all input written to
        the cache.
        """
        tiers = _DEAREST_TIERS if self._tier == "auto" else (self._tier,)
        usages = (Usage(input_tokens, output_tokens), Usage(input_tokens, output_tokens, cache_written=input_tokens))
        found = [self.dollars(usage, tier=one) for usage in usages for one in tiers]
        known = [dollars for dollars in found if dollars is not None]
        return max(known) if len(known) == len(found) else None

    def _listed(self, model: _Listed, usage: Usage, name: str, tier: str) -> float | None:
        if name in self._unlisted:
            return None
        from genai_prices import Usage as PricedUsage
        from genai_prices import calc_price

        priced = PricedUsage(
            input_tokens=usage.input,
            output_tokens=usage.output,
            cache_read_tokens=usage.cached or None,
            cache_write_tokens=usage.cache_written or None,
        )
        context = {"service_tier": tier} if tier else None
        try:
            if model.base_url is not None:
                found = calc_price(priced, name, provider_api_url=model.base_url, price_context=context)
            else:
                found = calc_price(priced, name, provider_id=_PROVIDER[model.provider], price_context=context)
        except LookupError:  # The list does not contain the server or the model.
            self._unlisted.add(name)
            return None
        except ValueError:  # The token counts contradict each other.
            return None
        return float(found.total_price)
