"""`doit why`: which packages and methods depend on a file, tensor, backend or library, and how."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pipeline.cli.columns import columns
from pipeline.cli.grammar import describe_no_packages
from pipeline.cli.verbs import find_path
from pipeline.features.explain.roads import Road, find_roads, make_match, make_road
from pipeline.plan.plan import Plan
from pipeline.store.errors import PipelineError, SourceError, plural

_USAGE = "doit why <file | tensor | backend | library | $VARIABLE>"


def run(plan: Plan, words: Sequence[str], json: bool = False) -> Iterator[Any]:
    """Yield a line for each road by which a package depends on a thing, and totals.

    Args:
        words: one thing, or a pattern of tensors or files.
        json: yields one record instead, in the form of `forms.DEPENDENTS`.

    Raises:
        PipelineError: no thing is named, or there is no package.
    """
    if len(words) != 1:
        raise PipelineError(f"name one thing: {_USAGE}")
    if not plan.packages:
        raise PipelineError(describe_no_packages(plan.workspace))
    (word,) = words
    matches = make_match(word, _spell(plan, word))
    rows: list[dict[str, Any]] = []
    unknown: dict[str, str] = {}
    for package in plan.packages:
        try:
            roads: list[Road] = []
            for road in find_roads(plan, package, matches):
                if road not in roads:
                    roads.append(road)
        except SourceError as error:
            unknown[package] = str(error)
            continue
        rows += [{"package": package, **road} for road in roads]
        if plan.waits(package):
            unknown[package] = f"model {plan.export(package)} is not exported here"
        elif problems := plan.problems(package):
            unknown[package] = f"its config has mistakes ({problems[0]})"
    rows += _find_relatives(plan, rows)
    if json:
        yield {"format": 1, "thing": word, "roads": rows, "not_known": unknown}
    else:
        exists = "/" not in word or "*" in word or find_path(plan, word).exists()
        yield from _show(word, rows, unknown, exists)


def _spell(plan: Plan, word: str) -> str:
    """Return a word in the spelling of the workspace's records if it names a file."""
    path = find_path(plan, word)
    if not path.exists():
        return word
    return plan.models.finder.places.spell(str(Path(path).absolute()))


def _find_relatives(
    plan: Plan, rows: Sequence[Mapping[str, Any]]
) -> Iterator[dict[str, Any]]:
    """Yield a row for each package that is linked again because one of its family is lowered."""
    lowered = dict.fromkeys(row["package"] for row in rows if row["lower"])
    for package in plan.packages:
        if package in lowered:
            continue
        relatives = [name for name in plan.members(package) if name in lowered]
        if relatives:
            yield {"package": package, **make_road("family", relatives[0])}


def _show(
    word: str,
    rows: Sequence[Mapping[str, Any]],
    unknown: Mapping[str, str],
    exists: bool,
) -> Iterator[str]:
    """Yield the lines; `exists` is false if the word can only be a file that doesn't exist."""
    cells = []
    for row in rows:
        methods = ", ".join(row["methods"] or ["all methods"])
        validated = "" if row["lower"] else "validated only"
        cells.append((row["package"], methods, row["road"], row["through"], validated))
    yield from (line.rstrip() for line in columns(cells))
    for package, reason in unknown.items():
        yield f"{package}: may depend on it in other ways; {reason}"
    packages = dict.fromkeys(row["package"] for row in rows)
    verb = "depends" if len(packages) == 1 else "depend"
    sentence = f"{plural(len(packages), 'package')} {verb} on {word}"
    yield sentence if packages or exists else f"{sentence}; there is no such file"
