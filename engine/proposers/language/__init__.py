"""The proposer that is a language model: prompts out of templates, replies read with suspicion."""

from engine.proposers.language.proposer import Language

__all__ = ["Language"]
