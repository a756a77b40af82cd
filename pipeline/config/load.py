"""Package configs: from what files of `partition_configs/` hold to a PackageConfig a package.

All mistakes are reported together, as Problems, in this project's words. Knows no torch.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from pipeline.config.compose import KEYS, Composition, Document
from pipeline.config.fields import NAME_PATTERN, RULES
from pipeline.config.models import PackageConfig
from pipeline.config.parser import parse
from pipeline.store.errors import ConfigErrors, Problem, shown


@dataclass(frozen=True)
class Configs:
    """Configs of a folder, by package.

    Attributes:
        configs, documents: the good ones, and what they were parsed from.
        problems: what is wrong with the others.
        files: the name of the file in messages.
    """

    configs: dict[str, PackageConfig] = field(default_factory=dict)
    documents: dict[str, Document] = field(default_factory=dict)
    problems: dict[str, tuple[Problem, ...]] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)

    def add(self, composition: Composition, package: str) -> None:
        """Add a package of a file; a package that two files make has no config."""
        other = self.files.setdefault(package, composition.file)
        try:
            if other != composition.file:
                what = f"makes the package '{package}', as {other} does"
                raise ConfigErrors([Problem(composition.file, "", what, "keep one")])
            if composition.problems:
                raise ConfigErrors(composition.problems)
            document = composition.documents[package]
            self.configs[package] = parse_document(package, document)
            self.documents[package] = document
        except ConfigErrors as errors:
            self.configs.pop(package, None)
            self.documents.pop(package, None)
            self.problems[package] = (*self.problems.get(package, ()), *errors.problems)


def parse_document(package: str, document: Document) -> PackageConfig:
    """Parse a document. Raises ConfigErrors, with every mistake and where it was written."""
    if not re.fullmatch(NAME_PATTERN, package):
        what = f"cannot name a package: {shown(package)} {RULES[NAME_PATTERN]}"
        raise ConfigErrors([*document.problems, document.problem("", what, "rename the file")])
    found = list(document.problems)
    try:
        config = parse(PackageConfig, document, KEYS, package=package)
    except ConfigErrors as errors:
        known = {(p.file, p.line, p.path) for p in found}
        found += [p for p in errors.problems if (p.file, p.line, p.path) not in known]
    if found:
        raise ConfigErrors(found)
    return config
