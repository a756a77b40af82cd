"""Parses the files of `partition_configs/` to one PackageConfig per package.

pydantic walks the data. Its errors are reworded at each model on the way, so that every mistake is
reported with its place and a remedy.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

from pydantic import ValidationError

from pipeline.backends import Options
from pipeline.config.compose import KEYS, Composition, Document
from pipeline.config.fields import wrong_package_name
from pipeline.config.models import PackageConfig
from pipeline.config.reader import Reader
from pipeline.store.errors import (
    ConfigErrors,
    Problem,
    join,
    plural,
    shown,
)

_M = TypeVar("_M", bound=Options)
_MOST_PROBLEMS = 100  # per document


# A package's config, or None if it has mistakes; the document that it was parsed from, or None if a
# file can't be read; and the mistakes.
ParsedPackage = tuple[PackageConfig | None, Document | None, tuple[Problem, ...]]


def parse_package(package: str, compositions: Sequence[Composition]) -> ParsedPackage:
    """Parse a package from the files that make it; a package that two files make has no config."""
    first, *duplicates = compositions
    document = first.documents.get(package)
    fault = f"makes the package '{package}', as {first.file} does"
    problems = [
        Problem(composition.file, "", fault, "keep one") for composition in duplicates
    ]
    try:
        if document is None:
            raise ConfigErrors(first.problems)
        config = parse_document(package, document)
    except ConfigErrors as errors:
        return None, document, (*errors.problems, *problems)
    return None if problems else config, document, tuple(problems)


def parse_document(package: str, document: Document) -> PackageConfig:
    """Parse a document. Raises ConfigErrors with every mistake and its place."""
    problems = list(document.problems)
    fault = wrong_package_name(package)
    if fault:
        fault_text = f"cannot name a package: {shown(package)} {fault}"
        problems.append(document.problem("", fault_text, "rename the file"))
    try:
        config = parse(PackageConfig, document, KEYS, package=package)
    except ConfigErrors as errors:
        places = {(problem.file, problem.line, problem.path) for problem in problems}
        for problem in errors.problems:
            if (problem.file, problem.line, problem.path) not in places:
                problems.append(problem)
    if problems:
        raise ConfigErrors(problems)
    return config


def parse(
    model: type[_M], document: Document, more_keys: Iterable[str] = (), **unwritten: Any
) -> _M:
    """Parse a document as a model. Raises ConfigErrors with every mistake.

    Args:
        more_keys: keys allowed in addition to the model's: they were consumed before.
        unwritten: values that can't be written in the document.
    """
    try:
        return model.model_validate(
            document.data, context=Reader(model, more_keys, unwritten)
        )
    except ValidationError as invalid:
        problems = []
        errors = invalid.errors(include_url=False)
        if len(errors) > _MOST_PROBLEMS:
            fault = f"has {plural(len(errors) - _MOST_PROBLEMS, 'more mistake')}"
            problems.append(Problem(document.file, "", fault, line=0))
        for error in errors[:_MOST_PROBLEMS]:
            path = ""
            context = error["ctx"]
            for key in error["loc"]:
                path = join(path, key)
            at = join(path, context["key"]) if "key" in context else ""
            problems.append(
                document.problem(path, context["what"], context["known"], at)
            )
        raise ConfigErrors(problems) from None
