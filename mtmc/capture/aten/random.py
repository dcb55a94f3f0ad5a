"""Operations that draw from the random generator. They stay library calls, with a declared effect."""

from __future__ import annotations

from typing import Any

import torch

from mtmc.capture.aten.site import Args

_DROPOUTS = frozenset({"dropout", "alpha_dropout", "feature_dropout", "feature_alpha_dropout", "native_dropout"})
_RECURRENT = frozenset({"lstm", "gru", "rnn_tanh", "rnn_relu"})


def is_identity(name: str, a: Args) -> bool:
    """True for a dropout that drops nothing."""
    return name in _DROPOUTS and name != "native_dropout" and (not a.train or a.p == 0)


def draws(target: Any, name: str, a: Args) -> bool:
    """True where a call advances the generator."""
    if name in _DROPOUTS:
        return not is_identity(name, a)
    if name == "scaled_dot_product_attention":
        return bool(a.dropout_p)
    if name in _RECURRENT:
        return bool(a.train and a.dropout and a.num_layers > 1)
    return torch.Tag.nondeterministic_seeded in target.tags
