"""The base of every record that crosses a process or file boundary."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Record(BaseModel):
    """A frozen, closed pydantic model: unknown fields are errors, fields cannot be reassigned."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)
