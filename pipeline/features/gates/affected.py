"""`doit affected`: lists what a run would build again because of changes since a revision.

It lists packages and methods, for people or as JSON for a CI matrix. Nothing is built.

The keys of actions decide: a method is affected if the key of its compile action differs from the
key at the revision. If a key can't be known because a model is not exported in this store, all
methods count as affected.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, Literal

from pipeline.cli.columns import columns
from pipeline.features.gates.names import fit_names
from pipeline.features.gates.references import Reference, open_reference
from pipeline.plan.plan import Plan
from pipeline.plan.status import describe_changes
from pipeline.store.errors import PipelineError, SourceError, did_you_mean

State = Literal["changed", "new", "removed"]
# The output of `doit affected --json` (`moments.Command.record`).
AFFECTED = {
    "format": Literal[1],
    "since": (str, "the revision from the command line"),
    "packages": [
        {
            "package": str,
            "state": (
                State,
                "how the package's keys differ from those at the revision",
            ),
            "lower": (bool, "whether a run lowers the package again"),
            "validate": (bool, "whether a run validates the package again"),
            "methods": (
                [str],
                None,
                "the methods that a run compiles again; null for all, or if they are unknown "
                "before an export",
            ),
            "reasons": ([str], "the changed files, config keys, tensors and libraries"),
        }
    ],
}
_MOST_REASONS = 3
_USAGE = "doit affected <revision> [package ...]"


Affected = Mapping[str, Any]  # in the form of `_make_row`


def _make_row(
    package: str,
    state: State,
    methods: Sequence[str] | None = (),
    reasons: Sequence[str] = (),
    *,
    lower: bool = True,
    validate: bool = True,
) -> Affected:
    """Return the record of a package that a change affects.

    Args:
        methods: the methods that are compiled again, in the order of the model; None for all, and
            if they can't be known before the model is exported.
        reasons: the changes, down to the file, config key, tensor or library.
        lower, validate: whether the package is lowered, and validated, again.
    """
    return {
        "package": package,
        "state": state,
        "lower": lower,
        "validate": validate,
        "methods": methods if methods is None else list(methods),
        "reasons": _shorten(reasons),
    }


def run(plan: Plan, words: Sequence[str], json: bool = False) -> Iterator[Any]:
    """Yield a line for each affected package and totals, or the record that `AFFECTED` describes.

    Args:
        words: a git revision, then packages or patterns of them, by default all.

    Raises:
        PipelineError: the revision or a package doesn't exist.
    """
    if not words:
        raise PipelineError(f"name a revision: {_USAGE}")
    revision, *names = words
    with ExitStack() as stack:
        reference = open_reference(plan, revision, stack)
        if reference is None or (reference.packages and reference.plan is None):
            raise PipelineError(f"'{revision}' is not a git revision; {_USAGE}")
        # Nothing is exported here.
        plan.trust_last_exports()
        packages = _select(plan, reference, names)
        comparisons = [_compare(plan, reference, package) for package in packages]
        affected = list(filter(None, comparisons))
    if json:
        yield {"format": 1, "since": reference.name, "packages": affected}
        return
    lines = columns([_describe(row) for row in affected])
    yield from (line.rstrip() for line in lines)
    yield f"{len(affected)} of {len(packages)} packages affected since {reference.name}"


def _select(plan: Plan, reference: Reference, names: Sequence[str]) -> list[str]:
    """Return the packages that names match, here or at the revision; by default all."""
    known = sorted({*plan.packages, *reference.packages})
    if not names:
        return known
    packages: dict[str, None] = {}
    for name in names:
        fitting = fit_names(known, name)
        if not fitting:
            raise PipelineError(
                f"'{name}' is not a package; {did_you_mean(name, known)}"
            )
        packages |= dict.fromkeys(fitting)
    return list(packages)


def _describe(row: Affected) -> tuple[str, str, str, str]:
    if row["state"] == "removed":
        what = ""
    elif not row["lower"]:
        what = "validated"
    elif row["methods"] is None:
        what = "all methods"
    else:
        what = ", ".join(row["methods"]) or "linked"
    return row["package"], row["state"], what, "; ".join(row["reasons"])


def _compare(plan: Plan, reference: Reference, package: str) -> Affected | None:
    """Return the record of a package, or None if it isn't affected."""
    if package not in plan.packages:
        return _make_row(package, "removed", lower=False, validate=False)
    revision = reference.plan
    if revision is None or package not in reference.packages:
        return _make_row(package, "new", None)
    unknown = _find_unknown(plan, package, "") or _find_unknown(
        revision, package, f" at {reference.name}"
    )
    if unknown:
        return _make_row(package, "changed", None, [unknown])
    methods: list[str] = []
    reasons: dict[str, None] = {}
    earlier = {action.method: action for action in revision.compiles(package) or ()}
    units = zip(plan.units(package), plan.compiles(package) or (), strict=True)
    for unit, action in units:
        before = earlier.get(action.method)
        if before is None or before.digest != action.digest:
            methods += unit
            if before is not None:
                reasons |= dict.fromkeys(describe_changes(plan, before.key, action))
    changed_link = _describe_link(plan, revision, package)
    if methods or changed_link:
        return _make_row(package, "changed", methods, list(reasons) or changed_link)
    changed_validation = _describe_validation(plan, revision, package)
    if changed_validation:
        return _make_row(package, "changed", (), changed_validation, lower=False)
    return None


def _find_unknown(plan: Plan, package: str, where: str) -> str:
    """Return why the keys of a package's actions can't be known, or "" if they can."""
    try:
        problems = plan.problems(package)
        if problems:
            return f"its config has mistakes{where} ({problems[0]})"
        if plan.link(package) is None:
            return f"model {plan.model(package)} is not exported in this store{where}"
    except SourceError as error:
        return f"its model can't be read{where} ({error})"
    return ""


def _describe_link(plan: Plan, revision: Plan, package: str) -> list[str]:
    """Return the differences between the links of a package at the revision and now."""
    before, now = revision.link(package), plan.link(package)
    assert before is not None and now is not None
    if before.digest == now.digest:
        return []
    return list(describe_changes(plan, before.key, now)) or ["its link changed"]


def _describe_validation(plan: Plan, revision: Plan, package: str) -> list[str]:
    """Return the differences between a package's validations at the revision and now."""
    methods = plan.methods(package)
    earlier_methods = revision.methods(package)
    assert methods is not None and earlier_methods is not None
    link = plan.link_digest(package)
    entry = link and plan.workspace.store.get(link)
    # The same files on both sides, so that only the validations themselves are compared.
    files = entry.result["files"] if entry else {}
    before = revision.make_validation(package, files, earlier_methods)
    now = plan.make_validation(package, files, methods)
    if before.digest == now.digest:
        return []
    return list(describe_changes(plan, before.key, now)) or ["its validation changed"]


def _shorten(reasons: Sequence[str]) -> list[str]:
    more = len(reasons) - _MOST_REASONS
    return [*reasons[:_MOST_REASONS], *([f"and {more} more"] if more > 0 else [])]
