"""What tokens cost: the published prices that come with ``genai-prices`` (no network), or the config's own.

An unknown price is None, never 0.
"""

from __future__ import annotations

from engine.config_models import GeminiModel, OpenAIModel
from engine.models.protocol import Usage

_PROVIDER = {"openai": "openai", "gemini": "google"}
_DEAREST_TIERS = ("default", "priority")
"""With the tier "auto" a project's setting decides, which only the reply tells."""


class Price:
    """The price of one model of a config. Importing the price list takes a quarter of a second, once."""

    def __init__(self, model: OpenAIModel | GeminiModel) -> None:
        self._model = model
        self._unlisted: set[str] = set()

    @property
    def known(self) -> bool:
        return self.dollars(Usage(1, 1)) is not None

    def dollars(self, usage: Usage, answered: str = "", tier: str = "") -> float | None:
        """Dollars for ``usage``, None where the price is unknown. ``answered``: the model as the server names it;
        where the list does not have that name, the one asked for counts. ``tier``: as the server says."""
        model = self._model
        if model.input_price is not None and model.output_price is not None:
            return (usage.input * model.input_price + usage.output * model.output_price) / 1e6
        tier = tier or model.service_tier or ""
        found = self._listed(usage, answered, tier) if answered else None
        return found if found is not None else self._listed(usage, model.model, tier)

    def at_most(self, input_tokens: int, output_tokens: int) -> float | None:
        """The most that a call may cost: nothing cached, all of it written to the cache, in the dearest tier."""
        tier = self._model.service_tier or ""
        tiers = _DEAREST_TIERS if tier == "auto" else (tier,)
        usages = (Usage(input_tokens, output_tokens), Usage(input_tokens, output_tokens, cache_written=input_tokens))
        found = [self.dollars(usage, tier=one) for usage in usages for one in tiers]
        known = [dollars for dollars in found if dollars is not None]
        return max(known) if len(known) == len(found) else None

    def _listed(self, usage: Usage, name: str, tier: str) -> float | None:
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
            if self._model.base_url is not None:
                found = calc_price(priced, name, provider_api_url=self._model.base_url, price_context=context)
            else:
                found = calc_price(priced, name, provider_id=_PROVIDER[self._model.provider], price_context=context)
        except LookupError:  # unknown server or model
            self._unlisted.add(name)
            return None
        except ValueError:  # counts that do not add up
            return None
        return float(found.total_price)
