"""Package configs: from what files of `partition_configs/` hold to a PackageConfig a package.

All mistakes are reported together, as Problems, in this project's words. Knows no torch.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.config.compose import KEYS, Composition, Document
from pipeline.config.fields import NAME_PATTERN, RULES
from pipeline.config.models import PackageConfig
from pipeline.config.parser import parse
from pipeline.store.errors import ConfigErrors, Problem, shown


@dataclass(frozen=True)
class Parsed:
    """The config of a package, or what is wrong with it, and the document it was parsed from."""

    config: PackageConfig | None = None
    document: Document | None = None
    problems: tuple[Problem, ...] = ()


def parse_package(package: str, compositions: Sequence[Composition]) -> Parsed:
    """Parse a package of the files that make it; one that two make has no config."""
    first, *others = compositions
    document = first.documents.get(package)
    what = f"makes the package '{package}', as {first.file} does"
    found = [Problem(each.file, "", what, "keep one") for each in others]
    try:
        if document is None:
            raise ConfigErrors(first.problems)
        config = parse_document(package, document)
    except ConfigErrors as errors:
        return Parsed(None, document, (*errors.problems, *found))
    return Parsed(None if found else config, document, tuple(found))


def parse_document(package: str, document: Document) -> PackageConfig:
    """Parse a document. Raises ConfigErrors, with every mistake and where it was written."""
    found = list(document.problems)
    if not re.fullmatch(NAME_PATTERN, package):
        what = f"cannot name a package: {shown(package)} {RULES[NAME_PATTERN]}"
        found.append(document.problem("", what, "rename the file"))
    try:
        config = parse(PackageConfig, document, KEYS, package=package)
    except ConfigErrors as errors:
        known = {(p.file, p.line, p.path) for p in document.problems}
        found += [p for p in errors.problems if (p.file, p.line, p.path) not in known]
    if found:
        raise ConfigErrors(found)
    return config
