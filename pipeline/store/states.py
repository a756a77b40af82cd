"""The record of what a package's last build left in `build/`, and the words for its verdicts.

Every run reads it, even one with nothing to do, so anything not needed for that is kept elsewhere.
"""

from __future__ import annotations

from typing import Any, Literal

from pipeline.store.digest import Digest
from pipeline.store.forms import FilePath, MethodName, check_of

Verdict = Literal["failed", "not run", "not judged", "passed"]
# The verdicts that `allow`, in configs and settings, can accept in addition to "passed".
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
    "budget?": float,  # in seconds, of an incomplete validation
    "left_out?": str,  # what an incomplete validation had no time for, in words
    "only?": list[str],
    "no_baseline?": list[str],
    "measured?": Digest,
    "vouchers?": list[str],
    "drops?": {MethodName: tuple[float, float]},
    "key?": dict[str, Any],  # of a validation that is not in the store
}
# Checks the record of what a package's last build left in `build/`.
is_state = check_of(
    {
        "exporter?": Digest,  # the content of the exporter when it last ran for the package
        "quantize?": dict[str, Digest],
        "compile?": dict[str, Digest],
        "link?": _INSTALLED,
        "validate?": _INSTALLED,
        "attest?": _INSTALLED,
    }
)
