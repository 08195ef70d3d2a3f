"""Language models as proposers: build prompts from templates, call models, and parse replies defensively."""

from engine.proposers.llm.proposer import Language

__all__ = ["Language"]
