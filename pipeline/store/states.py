"""The record of what the last build of a package left in `build/`, and the words of its verdicts.

Each run reads it, also one with nothing to do: what is not needed for it stands elsewhere.
"""

from __future__ import annotations

from typing import Any, Literal, NotRequired, TypedDict

from pipeline.store.digest import Digest
from pipeline.store.forms import FilePath, MethodName

Verdict = Literal["failed", "not run", "not judged", "passed"]
# What a person may accept in place of having passed, as `allow` of configs and settings has it.
Allowed = Literal["not-judged", "not-run"]


class _Installed(TypedDict):
    action: Digest
    files: dict[FilePath, Digest]
    ok: NotRequired[bool]
    verdict: NotRequired[Verdict]
    allow: NotRequired[list[Allowed]]
    methods: NotRequired[dict[str, Verdict]]
    sound: NotRequired[bool]
    complete: NotRequired[bool]
    only: NotRequired[list[str]]
    no_baseline: NotRequired[list[str]]
    measured: NotRequired[Digest]
    vouchers: NotRequired[list[str]]
    drops: NotRequired[dict[MethodName, tuple[float, float]]]
    key: NotRequired[dict[str, Any]]  # of a validation that the store does not hold


class PackageState(TypedDict):
    """The record of what the last build of a package left in `build/`; `exporter` is the content of
    the exporter that last ran for it."""

    exporter: NotRequired[Digest]
    quantize: NotRequired[dict[str, Digest]]
    compile: NotRequired[dict[str, Digest]]
    link: NotRequired[_Installed]
    validate: NotRequired[_Installed]
    attest: NotRequired[_Installed]
