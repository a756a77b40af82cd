"""Package configs: from the files in `partition_configs/` to a PackageConfig for each package.

Reading files does I/O; parsing is a pure function of what they hold. All mistakes are reported
together, as Problems, in this project's words and never in pydantic's. Knows no torch.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pipeline.config.compose import KEYS, Composition, Document, Folder
from pipeline.config.fields import NAME_PATTERN, RULES
from pipeline.config.models import PackageConfig
from pipeline.config.parser import parse
from pipeline.store.errors import ConfigErrors, Problem, shown


@dataclass(frozen=True)
class Configs:
    """The configs of a folder, by package.

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


def read_configs(folder: Path, environment: Mapping[str, str] = os.environ) -> Configs:
    """Read all configs of a folder but hidden ones; none where there is no folder. A bad config
    spoils no other. Raises PipelineError for a folder that cannot be read."""
    files = Folder(folder, environment)
    found = Configs()
    for path in files.paths:
        composition = files.compose(path)
        for package in composition.packages:
            found.add(composition, package)
    return found


def parse_document(package: str, document: Document) -> PackageConfig:
    """Parse a document. Raises ConfigErrors, with every mistake and where it was written."""
    found = list(document.problems)
    try:
        config = _parse(package, document.data, document.problem, KEYS)
    except ConfigErrors as errors:
        known = {(p.file, p.line, p.path) for p in found}
        found += [p for p in errors.problems if (p.file, p.line, p.path) not in known]
    if found:
        raise ConfigErrors(found)
    return config


def parse_config(package: str, data: object, file: str) -> PackageConfig:
    """Parse plain data; `file` is how messages call the file. Raises ConfigErrors, with every
    mistake."""
    return _parse(package, data, lambda path, what, known, at: Problem(file, path, what, known))


def _parse(
    package: str, data: object, problem: Callable[..., Problem], more_keys: Iterable[str] = ()
) -> PackageConfig:
    if not re.fullmatch(NAME_PATTERN, package):
        what = f"cannot name a package: {shown(package)} {RULES[NAME_PATTERN]}"
        raise ConfigErrors([problem("", what, "rename the file", "")])
    return parse(PackageConfig, data, problem, more_keys, package=package)
