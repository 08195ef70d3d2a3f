"""The playbook: a proposer of hand-written kernel templates and moves that needs no network and no key."""

from engine.proposers.playbook.playbook import Playbook

__all__ = ["Playbook"]
