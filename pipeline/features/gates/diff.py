"""`doit diff`: compares built packages with the accepted baselines, other builds or a revision."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from typing import Any, Literal

from pipeline.cli.grammar import describe_no_packages
from pipeline.features.gates.comparison import compare_builds, describe_one_build
from pipeline.features.gates.figures import read_build
from pipeline.features.gates.names import fit_names
from pipeline.features.gates.references import (
    Reference,
    open_baselines,
    open_reference,
)
from pipeline.features.gates.renames import find_renames, has_same_bytes
from pipeline.features.gates.rendering import (
    CHANGES,
    Change,
    Comparison,
    describe_unchanged,
    heading,
)
from pipeline.plan.plan import Plan
from pipeline.plan.status import link_status
from pipeline.report.records import read_fitting
from pipeline.store.errors import PipelineError, did_you_mean, listed
from pipeline.store.files import MANIFEST, REPORT

Json = Mapping[str, Any]
# The output of `doit diff --json` (`moments.Command.record`).
DIFFERENCES = {
    "format": Literal[1],
    "against": (str, "the build that packages are compared with"),
    "packages": [
        {
            "package": str,
            "same": (bool, "whether nothing differs"),
            "change": (Change, "how the package changed"),
            "previous": (str, None, "the previous name of a renamed package"),
            "against": (str, "the build that this package is compared with"),
            "methods": (
                {str: Change},
                "the methods that are in only one of the builds, or were renamed, by name",
            ),
            "sections": (
                [
                    {
                        "title": (str, "a method, or the subject of the rows"),
                        "rows": [
                            {
                                "what": (str, "the figure or fact that a row compares"),
                                "before": (
                                    str,
                                    'the value in the other build; "" if there is none',
                                ),
                                "after": (
                                    str,
                                    'the value in this build; "" if there is none',
                                ),
                                "change": (
                                    str,
                                    'the difference; "" if it can\'t be expressed',
                                ),
                            }
                        ],
                    }
                ],
                "the tables of differences",
            ),
            "notes": ([str], "other remarks on the comparison"),
        }
    ],
    "failures": (
        [str],
        "the packages that can't be compared, and the changes that `--fail-on` names; if there are "
        "any, the exit status is 1",
    ),
}


def run(
    plan: Plan,
    words: Sequence[str],
    markdown: bool = False,
    fail_on: str = "",
    json: bool = False,
) -> Iterator[Any]:
    """Compare packages, and yield lines for each.

    Args:
        words: packages, by default all, and at most one reference: a manifest, a folder of
            manifests or a git revision. By default the accepted baselines.
        fail_on: the kinds of changes, joined by commas, that are errors.
        json: yields one record instead, as `DIFFERENCES` describes it.

    Raises:
        PipelineError: packages can't be compared, or changes are in `fail_on`, with a line for
            each; raised after everything else is compared.
    """
    unwanted = _parse_changes(fail_on)
    if markdown and json:
        raise PipelineError("--markdown and --json: choose one")
    with ExitStack() as stack:
        reference, names = _choose_reference(plan, words, stack)
        if not plan.packages and not reference.packages:
            raise PipelineError(describe_no_packages(plan.workspace))
        names = names or list(reference.default)
        removed, packages, losses = _select(plan, names, reference)
        comparisons = [_describe_removed(package, reference) for package in removed]
        failures = list[str]()
        for package, previous in packages.items():
            try:
                comparisons.append(_compare(plan, package, reference, previous))
            except PipelineError as error:
                failures += error.lines
        not_compared = len(failures)
        failures += losses
        failures += _find_unwanted(unwanted, comparisons)
        if json:
            yield _make_record(reference, comparisons, failures)
        elif markdown:
            yield from _write_markdown(comparisons, not_compared)
        else:
            yield from _write_text(comparisons)
        if failures:
            raise PipelineError(*failures)


def _make_record(
    reference: Reference, comparisons: Sequence[Comparison], failures: Sequence[str]
) -> dict[str, Any]:
    return {
        "format": 1,
        "against": reference.name,
        "packages": [_describe_as_json(comparison) for comparison in comparisons],
        "failures": list(failures),
    }


def _describe_as_json(comparison: Comparison) -> dict[str, Any]:
    sections = []
    for title, rows in comparison.sections:
        sections.append({"title": title, "rows": [row._asdict() for row in rows]})
    return {
        "package": comparison.package,
        "same": comparison.same,
        "change": comparison.change,
        "previous": comparison.previous or None,
        "against": comparison.against,
        "methods": dict(comparison.methods),
        "sections": sections,
        "notes": list(comparison.notes),
    }


def _write_text(comparisons: Sequence[Comparison]) -> Iterator[str]:
    for number, comparison in enumerate(comparisons):
        if number and not comparison.same:
            yield ""
        yield from comparison.text()


def _write_markdown(comparisons: Sequence[Comparison], refused: int) -> Iterator[str]:
    """Yield lines of Markdown: a heading, each package that differs, and the others in one line."""
    yield heading(comparisons, refused)
    unchanged: list[Comparison] = []
    for comparison in comparisons:
        if comparison.same and not comparison.notes:
            unchanged.append(comparison)
        else:
            yield ""
            yield from comparison.markdown()
    for line in describe_unchanged(unchanged):
        yield from ("", line)


# Arguments


def _parse_changes(text: str) -> list[Change]:
    """Parse the value of `--fail-on`. Raises PipelineError."""
    words = list(filter(None, text.split(",")))
    for word in words:
        if word not in CHANGES:
            raise PipelineError(f"--fail-on: '{word}'; {did_you_mean(word, CHANGES)}")
    return [change for change in CHANGES if change in words]


def _choose_reference(
    plan: Plan, words: Sequence[str], stack: ExitStack
) -> tuple[Reference, list[str]]:
    """Return the reference, and the words that name packages.

    Raises PipelineError for other words.
    """
    unknown = [word for word in words if not fit_names(plan.packages, word)]
    reference = None
    for word in unknown:
        reference = open_reference(plan, word, stack)
        if reference is not None:
            names = [name for name in words if name != word]
            break
    if reference is None:
        reference = open_baselines(plan)
        names = list(words)
    for name in names:
        if name in unknown and not fit_names(reference.packages, name):
            raise PipelineError(_describe_unknown(plan, unknown))
    return reference, names


def _describe_unknown(plan: Plan, words: Sequence[str]) -> str:
    if not plan.packages:
        return describe_no_packages(plan.workspace)
    hint = did_you_mean(words[-1], plan.packages)
    if len(words) == 1:
        return f"'{words[0]}' is not a package, a file or a git revision; {hint}"
    return f"'{words[0]}' and '{words[1]}' are not packages; {hint}"


def _select(
    plan: Plan, names: Sequence[str], reference: Reference
) -> tuple[list[str], dict[str, str | None], list[str]]:
    """Return the packages that names match, here or in the reference; by default all.

    The result has three parts: the packages that only the reference has; the packages of the
    workspace, with their former names if renamed; and a line for each name that no package has any
    more.
    """
    former_names = find_renames(plan, reference)
    new_names = {previous: package for package, previous in former_names.items()}
    missing = reference.missing_in(plan)
    removed: dict[str, None] = {}
    packages: dict[str, str | None] = {}
    losses = []
    for name in names or [*missing, *plan.packages]:
        for package in fit_names(plan.packages, name):
            packages[package] = former_names.get(package)
        for previous in fit_names(missing, name):
            new_name = new_names.get(previous)
            if new_name is None:
                removed[previous] = None
            else:
                packages[new_name] = previous
            if names and name == previous:
                change = f"renamed to '{new_name}'" if new_name else "removed"
                losses.append(f"'{name}' was {change} since {reference.name}")
    return list(removed), packages, losses


# Comparisons


def _describe_removed(package: str, reference: Reference) -> Comparison:
    try:
        build, _, notes = reference.find(package)
    except PipelineError as error:
        build = None
        notes = (str(error).removeprefix(f"{package}: "),)
    return describe_one_build(package, "removed", build, reference.name, notes)


def _compare(
    plan: Plan, package: str, reference: Reference, previous: str | None
) -> Comparison:
    """Compare a package with its build in the reference.

    There it may have a previous name or be missing. Raises PipelineError.
    """
    build = read_build(plan.workspace.package(package) / MANIFEST)
    if previous is not None:
        return _compare_renamed(plan, package, build, reference, previous)
    if reference.is_complete and package not in reference.packages:
        notes = _describe_staleness(plan, package, build)
        return describe_one_build(package, "new", build, reference.name, notes)
    if build is None:
        raise PipelineError(f"{package}: is not built; run `doit lower:{package}`")
    old, name, notes = reference.find(package)
    notes += _describe_staleness(plan, package, build)
    if note := _unknown_numerics(plan, package, build):
        notes += (note,)
    build = _with_names_of(old, build, package, package)
    return compare_builds(package, old, build, name, notes)


def _compare_renamed(
    plan: Plan, package: str, build: Json | None, reference: Reference, previous: str
) -> Comparison:
    """Compare a package with its build under its previous name.

    The inputs of both are the same, even if nothing else about the old build is known.
    """
    notes = _describe_staleness(plan, package, build)
    comparison = Comparison(package, reference.name, (), notes)
    if build is not None:
        with suppress(PipelineError):
            old, name, old_notes = reference.find(previous)
            build = _with_names_of(old, build, package, previous)
            comparison = compare_builds(package, old, build, name, old_notes + notes)
    return replace(comparison, change="renamed", previous=previous)


def _with_names_of(old: Json, build: Json, package: str, previous: str) -> Json:
    """Return the build, with the old build's digest if only the names of its files differ.

    The digest depends on the names.
    """
    if not has_same_bytes(build, old, package, previous):
        return build
    digest = old["figures"]["digest"]
    return {**build, "figures": {**build["figures"], "digest": digest}}


def _describe_staleness(
    plan: Plan, package: str, build: Json | None
) -> tuple[str, ...]:
    """Return a note if a package's build doesn't match its sources."""
    if problems := plan.problems(package):
        return (f"its config has mistakes ({problems[0]})",)
    if build is None:
        return (f"build/{package} is not built; run `doit lower:{package}`",)
    status = link_status(plan, package)
    if status.current:
        return ()
    return (f"build/{package} is out of date: {status.reason}",)


def _unknown_numerics(plan: Plan, package: str, build: Json) -> str:
    """Return a note on methods whose numerics are unknown, or "" if all are known."""
    methods = build["figures"]["methods"].items()
    unknown = [name for name, method in methods if method["sqnr_db"] is None]
    report = read_fitting(plan.workspace.package(package) / REPORT) or {}
    built = build["manifest"]["files"]
    files = {name: file["digest"] for name, file in built.items()}
    if unknown and report.get("files") != files:
        return f"numerics are left out: the current build/{package} is not validated"
    if unknown:
        return f"numerics of {', '.join(unknown)} are left out: not run here"
    return ""


def _find_unwanted(
    changes: Sequence[Change], comparisons: Sequence[Comparison]
) -> Iterator[str]:
    """Yield a line for each kind of change in `changes` that occurred."""
    for change in changes:
        names: list[str] = []
        for comparison in comparisons:
            names += comparison.names_of(change)
        if names:
            yield f"--fail-on {change}: {listed(names)}"
