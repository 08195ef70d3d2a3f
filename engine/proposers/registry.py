"""Proposers by the provider that a config names. Each is imported only where it is used."""

from __future__ import annotations

from engine.config import Config
from engine.exit_codes import ExitCode
from engine.proposers.protocol import Proposer


class ProposerUnavailable(Exception):
    """A config asks for a proposer that this version does not have."""

    exit_code = ExitCode.USAGE


def make_proposers(config: Config) -> list[tuple[Proposer, float]]:
    """The config's proposers with their weights. Raises ``ProposerUnavailable``."""
    check_providers(config)
    from engine.proposers.playbook import Playbook

    return [(Playbook(), sum(model.weight for model in config.models))]


def check_providers(config: Config) -> None:
    """Raises ``ProposerUnavailable`` for a provider that this version does not have; imports nothing."""
    for model in config.models:
        if model.provider != "playbook":
            raise ProposerUnavailable(
                f'{config.path}: models: provider "{model.provider}" is not available in this version, '
                'allowed: "playbook"'
            )
