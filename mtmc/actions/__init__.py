"""The vocabulary of macro actions: one small step each, that prints, parses and keeps the meaning.

A further type of action is one more module with ``KIND``, ``propose``, ``check``, ``rewrite``, ``describe`` and
``parse``, and one more entry in :data:`mtmc.actions.catalog.ACTIONS`.
"""

from __future__ import annotations

from mtmc.actions.action import Action
from mtmc.actions.catalog import ACTIONS, VOCABULARY_VERSION, Candidates, apply, parse, propose

__all__ = ["ACTIONS", "VOCABULARY_VERSION", "Action", "Candidates", "apply", "parse", "propose"]
