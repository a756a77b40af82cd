"""Shares of work that delegates run, as configs write them: 0.9 or 90%."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Annotated, Any

from pydantic import BeforeValidator, WithJsonSchema

from pipeline.config.fields import SHARE_PATTERN, Share


def _parse_share(value: Any) -> Any:
    """Return a percentage as a number, and any other value unchanged."""
    if isinstance(value, str) and re.fullmatch(SHARE_PATTERN, value):
        # As a decimal: 0.7 / 100 is not 0.007 in floating point.
        return float(Decimal(value.rstrip("% ")) / 100)
    return value


DelegatedShare = Annotated[
    Share,
    BeforeValidator(_parse_share),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "number", "minimum": 0, "maximum": 1},
                {"type": "string", "pattern": SHARE_PATTERN},
            ]
        }
    ),
]
