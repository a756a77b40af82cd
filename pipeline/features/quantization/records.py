"""The records of quantize actions, which the store uses to check their results."""

from __future__ import annotations

from typing import Any

from pipeline.store.digest import Digest
from pipeline.store.forms import Count
from pipeline.store.quantized import QUANTIZATION_FACTS, Decibels

# The first operator at which the prepared program diverges from the float one, and its place in the
# float program; the operators that were `folded` into it, each with its module; and its weight, if
# other operators read it too.
_DIVERGENCE = {
    "node": str,
    "place": (Count, None),
    "operator": str,
    "module": str,
    "folded": list[tuple[str, str]],
    "shared": str,
    "sqnr_db": Decibels,
}

# How well the prepared program, which observes but rounds nothing, agrees with the float one on the
# observed inputs. Outputs are judged over all calls, the worst first.
PREPARED = {
    "agrees": (bool, None),
    "calls": Count,
    "outputs": [
        {
            "output": str,
            "sqnr_db": Decibels,
            "max_abs": Decibels,
            "limit_db": Decibels,
            "agrees": (bool, None),  # None if rounding alone moves it as far
            "inputs": str,  # the origin of the worst call's inputs
            "generated": bool,
        }
    ],
    "divergence": (_DIVERGENCE, None),
}

QUANTIZE: dict[str, Any] = {
    "program": Digest,
    "blobs": list[Digest],
    "origins": list[dict[str, Count]],
    "facts": QUANTIZATION_FACTS,
    "prepared": (PREPARED, None),  # agreement before rounding
    "divergence": str,  # in words, if it doesn't agree
}
