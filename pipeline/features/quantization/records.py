"""The records of quantize actions, by which the store checks their results."""

from __future__ import annotations

from typing import Any

from pipeline.store.digest import Digest
from pipeline.store.forms import Count
from pipeline.store.quantized import QUANTIZATION_FACTS, Decibels

# The first operator at which the prepared program departs from the float one, and its place in the
# float one; the operators that were `folded` into it, each with its module; and its weight, where
# others read that, too.
_DEPARTURE = {
    "node": str,
    "place": (Count, None),
    "operator": str,
    "module": str,
    "folded": list[tuple[str, str]],
    "shared": str,
    "sqnr_db": Decibels,
}

# How far the prepared program, which observes and rounds nothing, agrees with the float one on the
# inputs that were observed; of the outputs over all calls, the worst is first.
PREPARED = {
    "agrees": (bool, None),
    "calls": Count,
    "outputs": [
        {
            "output": str,
            "sqnr_db": Decibels,
            "max_abs": Decibels,
            "limit_db": Decibels,
            "agrees": (bool, None),  # None where rounding alone moves it as far
            "inputs": str,  # the origin of the worst
            "generated": bool,
        }
    ],
    "departure": (_DEPARTURE, None),
}

QUANTIZE: dict[str, Any] = {
    "program": Digest,
    "blobs": list[Digest],
    "origins": list[dict[str, Count]],
    "facts": QUANTIZATION_FACTS,
    "prepared": (PREPARED, None),  # its agreement before rounding
    "departure": str,  # in words, where it does not agree
}
