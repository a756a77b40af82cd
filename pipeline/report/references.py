"""The comparison of exported programs with their references: PyTorch in eager mode, or recorded
outputs. Where a method has none, the report says that PyTorch itself was not run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from pipeline.report.elements import Json
from pipeline.report.formatting import error, short
from pipeline.report.verdicts import PASSED
from pipeline.store.errors import listed, plural

UNREFERENCED = "against the exported program; PyTorch itself was not run"
_MOST_NAMED = 4


def describe_reference(reference: Json) -> str:
    """Return what came of the comparison with a reference: why it has not passed, or how near the
    exported program is."""
    if reference["verdict"] != PASSED:
        return str(reference["reason"])
    worst = reference["max_abs"]
    near = "exactly"
    if worst:
        near = f"within {error(worst)}"
    calls = f"{plural(reference['calls'], 'call')} of {_compared(reference)} {near}"
    limits = describe_limits(reference)
    if limits:
        return f"{calls}, held to {limits}"
    return calls


def describe_limits(reference: Json, places: Mapping[str, str] | None = None) -> str:
    """Return the limits that the config sets on a comparison with a reference, and where it does;
    "" where it sets none.

    Args:
        places: file and line of settings, by their path in the config.
    """
    limits = reference.get("limits", {})
    if not limits:
        return ""
    values = []
    for name, value in limits.items():
        values.append(f"{name} {short(value)}")
    paths = reference.get("limits_from", ())
    lines = [places[path] for path in paths if places and path in places]
    where = listed([*paths, *dict.fromkeys(lines)], _MOST_NAMED)
    return f"{listed(values)} ({where})"


def _kind(origin: str) -> str:
    # as `features/references/recorder.py` calls it
    ran = origin.startswith("reference(")
    if ran:
        return "PyTorch in eager mode"
    return "recorded outputs"


def _compared(reference: Json) -> str:
    return listed(reference["compared"], _MOST_NAMED)


def is_unreferenced(method: Json) -> bool:
    """Tell whether a method of programs is compared with nothing but the exported program."""
    return method["kind"] == "program" and not method.get("reference")


def describe_referenced(methods: Sequence[Json]) -> Iterator[str]:
    """Yield what was seen of the references of methods that have some."""
    references = {m["method"]: m["reference"] for m in methods if m.get("reference")}
    passed = [
        reference for reference in references.values() if reference["verdict"] == PASSED
    ]
    if passed:
        yield _describe_passed(passed)
    for name, reference in references.items():
        verdict = reference["verdict"]
        if verdict in ("not judged", "not run"):
            yield f"The export of {name} is {verdict}: {reference['reason']}."
        elif verdict == PASSED and (limits := describe_limits(reference)):
            yield f"The export of {name} is held to {limits} of its reference."


def _describe_passed(passed: Sequence[Json]) -> str:
    calls = 0
    kinds: dict[str, None] = {}  # in their order
    worst = 0.0
    for reference in passed:
        calls += reference["calls"]
        for origin in reference["compared"]:
            kinds[_kind(origin)] = None
        if isinstance(reference["max_abs"], int | float):
            worst = max(worst, reference["max_abs"])
    near = "exactly"
    if worst:
        near = f"within {error(worst)}"
    number = plural(calls, "call")
    return f"The exported program matches {' and '.join(kinds)} {near} ({number})."


def describe_unreferenced(methods: Sequence[Json]) -> Iterator[str]:
    """Yield a sentence where methods have no reference."""
    programs = [method for method in methods if method["kind"] == "program"]
    lacking = [method["method"] for method in programs if is_unreferenced(method)]
    if len(lacking) == len(programs) and lacking:
        yield f"Judged {UNREFERENCED}."
    elif lacking:
        yield f"{listed(lacking, _MOST_NAMED)}: {UNREFERENCED}."


def describe_comparison(reference: Json | None) -> str:
    """Return what a method's export is compared with, for a table; without a reference, that
    nothing is."""
    if reference is None:
        return UNREFERENCED
    return (
        f"{plural(reference['calls'], 'call')} of the export, by {_compared(reference)}"
    )
