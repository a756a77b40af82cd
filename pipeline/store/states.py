"""The record of what the last build of a package left in `build/`, and the words of its verdicts.

Each run reads it, also one with nothing to do: what is not needed for it stands elsewhere.
"""

from __future__ import annotations

from typing import Any, Literal

from pipeline.store.digest import Digest
from pipeline.store.forms import FilePath, MethodName, check_of

Verdict = Literal["failed", "not run", "not judged", "passed"]
# What a person may accept in place of having passed, as `allow` of configs and settings has it.
Allowed = Literal["not-judged", "not-run"]


_INSTALLED = {
    "action": Digest,
    "files": {FilePath: Digest},
    "ok?": bool,
    "verdict?": Verdict,
    "allow?": list[Allowed],
    "methods?": dict[str, Verdict],
    "sound?": bool,
    "complete?": bool,
    "budget?": float,  # seconds, of a validation that is not complete
    "left_out?": str,  # what it had no time for, in words
    "only?": list[str],
    "no_baseline?": list[str],
    "measured?": Digest,
    "vouchers?": list[str],
    "drops?": {MethodName: tuple[float, float]},
    "key?": dict[str, Any],  # of a validation that the store does not hold
}
# What the last build of a package left in `build/`.
is_state = check_of(
    {
        "exporter?": Digest,  # the content of the exporter that last ran for it
        "quantize?": dict[str, Digest],
        "compile?": dict[str, Digest],
        "link?": _INSTALLED,
        "validate?": _INSTALLED,
        "attest?": _INSTALLED,
    }
)
