"""The packages and methods that `-k` and `--last-failed` select from those named."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Sequence
from fnmatch import fnmatchcase
from itertools import chain
from typing import Any

from pipeline.cli.grammar import Target, find_targets, is_pattern
from pipeline.plan.plan import Plan
from pipeline.report.events import RUN
from pipeline.store.errors import PipelineError, listed

Fits = Callable[[str, str], bool]  # takes a package and a method, which may be ""


def parse_expression(text: str) -> Fits:
    """Return the predicate for an expression of `-k`.

    An expression is made of words or patterns, joined by `or`, `and` and `not`; `not` binds
    tightest. Case is ignored. Raises PipelineError if a word is missing.
    """
    alternatives = []
    for alternative in f" {text.lower()} ".split(" or "):
        alternatives.append([_parse_term(term) for term in alternative.split(" and ")])
    if any(not term for terms in alternatives for _, term in terms):
        raise PipelineError(
            f"-k: '{text}' lacks a word; write it as 'enc and not int8'"
        )

    def fits(package: str, method: str) -> bool:
        for terms in alternatives:
            if all(_contains(package, method, term) == sign for sign, term in terms):
                return True
        return False

    return fits


def _parse_term(term: str) -> tuple[bool, str]:
    """Return whether a term must match rather than must not, and its text."""
    stripped = term.strip()
    is_negated = stripped == "not" or stripped.startswith("not ")
    if is_negated:
        stripped = stripped.removeprefix("not").strip()
    return not is_negated, stripped


def _contains(package: str, method: str, term: str) -> bool:
    """Return whether `package/method` contains a word, or matches a pattern.

    A pattern may also match the package or the method alone.
    """
    names = [name.lower() for name in (f"{package}/{method}", package, method)]
    if is_pattern(term):
        return any(fnmatchcase(name, term) for name in names)
    return term in names[0]


class Selector:
    """Selects packages and methods.

    Args:
        expressions: the expressions of `-k`; a method has to match all of them.
        failed: the packages to select from, or None for all.
    """

    def __init__(
        self, plan: Plan, expressions: Sequence[str], failed: Collection[str] | None
    ) -> None:
        self._plan = plan
        self._texts = expressions
        self._expressions = [parse_expression(text) for text in expressions]
        self._failed = failed

    def select(
        self, words: Sequence[str], takes_methods: bool, group: str = ""
    ) -> list[str]:
        """Return the words that are selected, each in the form `package[/method]`.

        Without words, the selection is made from all packages.

        Raises PipelineError if nothing is selected.

        Args:
            takes_methods: whether methods may be named; if not, a package is selected if one of its
                methods is.
            group: `quantize` or `export`, which do nothing for some packages and methods.
        """
        targets = find_targets(self._plan, words)
        selected: list[str] = []
        for target in targets:
            if self._failed is None or target.package in self._failed:
                selected += self._names_of(target, takes_methods)
        if group == "export":
            selected = [name for name in selected if self._plan.exporter(name)]
        elif group == "quantize":
            selected = [name for name in selected if self._is_quantized(name)]
        if not selected:
            raise PipelineError(self._describe_nothing(targets))
        return selected

    def _describe_nothing(self, targets: Sequence[Target]) -> str:
        options = [f"-k '{text}'" for text in self._texts]
        if self._failed is not None:
            options.append("--last-failed")
        known = listed([target.package for target in targets], 10)
        return f"nothing matches {' '.join(options)} in these packages: {known}"

    def _names_of(self, target: Target, takes_methods: bool) -> list[str]:
        """Return the words for the selected part of a target."""
        package = target.package
        methods = list(chain.from_iterable(self._plan.units(package)))
        # A config with mistakes has no methods.
        asked = target.methods or methods or [""]
        fitting = []
        for method in asked:
            if all(fits(package, method) for fits in self._expressions):
                fitting.append(method)
        if not fitting:
            return []
        if not takes_methods or set(fitting) >= set(methods):
            return [package]
        return [f"{package}/{method}" for method in fitting]

    def _is_quantized(self, name: str) -> bool:
        package, _, method = name.partition("/")
        quantized = self._plan.quantized(package)
        return method in quantized if method else bool(quantized)


def read_failed(plan: Plan) -> set[str]:
    """Return the packages that failed in the last run of the workspace.

    They include packages that were not built because something else failed, and packages that did
    not pass their validation.
    """
    failed: set[str] = set()
    for action in _read_actions(plan):
        package = action["package"]
        if action["outcome"] in ("failed", "not-run"):
            failed.update(_packages_of(plan, package, action["model"]))
        elif action["kind"] == "validate":
            state = plan.workspace.state(package).get("validate", {})
            if state.get("verdict") == "failed":
                failed.add(package)
    return failed & set(plan.packages)


def _read_actions(plan: Plan) -> list[dict[str, Any]]:
    """Return the actions of the last run, or an empty list if its record can't be read."""
    try:
        text = (plan.workspace.build / RUN).read_text()
        actions: list[dict[str, Any]] = json.loads(text)["actions"]
    except (OSError, ValueError, KeyError, TypeError):
        return []
    return actions


def _packages_of(plan: Plan, package: str | None, export: str) -> list[str]:
    """Return the package of an action or, for an export, the packages made from it."""
    if package:
        return [package]
    return [name for name in plan.packages if plan.exporter(name) == export]
