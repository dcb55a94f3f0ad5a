"""Messages between parent and children: one JSON object a line. Imports no torch, so that a child starts quickly."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

MAX_LINE = 1 << 26
"""Bytes of the largest message that is read."""


def dumps(message: Mapping[str, Any]) -> bytes:
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"


def loads(line: bytes) -> dict[str, Any]:
    message = json.loads(line)
    if not isinstance(message, dict):
        raise ValueError("a message is a JSON object")
    return message
