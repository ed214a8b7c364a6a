"""Values as both databases store them: text without NUL and lone surrogates, JSON, and numbers whose NaN is NULL."""

from __future__ import annotations

import hashlib
import json
import math
from typing import Any, cast

_MOST_CHARACTERS = 1 << 20
"""Longest text: what is longer, such as the output in a cause of death, keeps its beginning and its end."""
_LONGEST_NAME = 300
"""Longest name, in characters: PostgreSQL refuses rows of an index above 2704 bytes, here run, group and name."""
_KEPT_OF_NAME = 280


def to_name(value: object) -> str:
    """Return a name that both databases take in an index, and that fits into a table: what is longer is cut.

    It ends in a digest then, so that two that begin alike stay two.
    """
    text = str(value)
    if len(text) <= _LONGEST_NAME:
        return to_text(text)
    digest = hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:12]
    return f"{to_text(text[:_KEPT_OF_NAME])}...{digest}"


def to_text(value: object) -> str:
    """Return a text that both databases take."""
    text = str(value)
    if len(text) > _MOST_CHARACTERS:
        half = _MOST_CHARACTERS // 2
        text = f"{text[:half]}\n[... {len(text) - 2 * half} characters left out ...]\n{text[-half:]}"
    if text.isascii() and "\0" not in text:
        return text
    return text.encode("utf-8", "replace").decode().replace("\0", "\ufffd")


def to_json(value: dict[str, Any]) -> str:
    """Return a dictionary as JSON in ASCII; what JSON has no form for becomes its text."""
    return json.dumps(value, default=str)


def from_json(text: str) -> dict[str, Any]:
    """Return the dictionary of a JSON text; anything else is an empty one."""
    value = json.loads(text)
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def to_number(value: float | None) -> float | None:
    """Return a number for a column; NaN is NULL there."""
    return None if value is None or math.isnan(value) else float(value)


def from_number(value: float | None) -> float:
    """Return the number of a column."""
    return math.nan if value is None else value


def to_time(value: float) -> float:
    """Return a time for a column that has no NULL: 0 if it is not a time."""
    return float(value) if math.isfinite(value) else 0.0
