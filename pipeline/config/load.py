"""Package configs: from the files in `partition_configs/` to a PackageConfig for each package.

Reading files does I/O; parsing is a pure function of what they hold. All mistakes are reported
together, as Problems, in this project's words and never in pydantic's. Knows no torch.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from pipeline.backends import BACKENDS, PartitionerSpec, QuantizeConfig
from pipeline.config.compose import KEYS, Composition, Document, Folder
from pipeline.config.fields import NAME_PATTERN, RULES
from pipeline.config.models import (
    EdgeConfig,
    EmitConfig,
    LayoutConfig,
    MethodConfig,
    PackageConfig,
    PassSpec,
)
from pipeline.config.parser import Parser
from pipeline.config.validation import Gates, ValidateConfig
from pipeline.store.errors import ConfigErrors, Problem, did_you_mean, join, shown

__all__ = [
    "Configs",
    "EdgeConfig",
    "EmitConfig",
    "Gates",
    "LayoutConfig",
    "MethodConfig",
    "PackageConfig",
    "PartitionerSpec",
    "PassSpec",
    "QuantizeConfig",
    "ValidateConfig",
    "parse_config",
    "parse_document",
    "read_configs",
]


class Use(NamedTuple):
    """One place where a config names a backend of the catalogue."""

    document: Document
    path: str
    backend: str


@dataclass(frozen=True)
class Configs:
    """The configs of a folder, by package.

    Attributes:
        configs, documents: the good ones, and what they were parsed from.
        problems: what is wrong with the others.
        uses: where any of them names a backend, as far as that can be read.
        files: the name of the file in messages.
    """

    configs: dict[str, PackageConfig] = field(default_factory=dict)
    documents: dict[str, Document] = field(default_factory=dict)
    problems: dict[str, tuple[Problem, ...]] = field(default_factory=dict)
    uses: dict[str, tuple[Use, ...]] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)

    def add(self, composition: Composition, package: str) -> None:
        """Add a package of a file; a package that two files make has no config."""
        other = self.files.setdefault(package, composition.file)
        problems: Sequence[Problem] = composition.problems
        if other != composition.file:
            what = f"makes the package '{package}', as {other} does"
            problems = [Problem(composition.file, "", what, "keep one")]
        try:
            if problems:
                raise ConfigErrors(problems)
            document = composition.documents[package]
            self.uses[package] = tuple(_uses(document))
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
    """Parse a document; each mistake names the place where it was written.

    Raises:
        ConfigErrors: everything that is wrong.
    """
    parser = Parser(document.problem, KEYS)
    try:
        config = _parse(parser, package, document.data)
    except ConfigErrors as errors:
        known = {(p.file, p.line, p.path) for p in document.problems}
        more = [p for p in errors.problems if (p.file, p.line, p.path) not in known]
        raise ConfigErrors([*document.problems, *more]) from None
    if document.problems:
        raise ConfigErrors(document.problems)
    return config


def parse_config(package: str, data: object, file: str) -> PackageConfig:
    """Parse plain data; `file` is how messages call the file.

    Raises:
        ConfigErrors: everything that is wrong.
    """
    parser = Parser(lambda path, what, known, at: Problem(file, path, what, known))
    return _parse(parser, package, data)


def _parse(parser: Parser, package: str, data: object) -> PackageConfig:
    if not isinstance(data, dict):
        parser.wrong("", f"is {shown(data)}, must be a mapping", "begin with `model:`")
        raise ConfigErrors(parser.problems)
    if not re.fullmatch(NAME_PATTERN, package):
        parser.wrong(
            "", f"cannot name a package: {shown(package)} {RULES[NAME_PATTERN]}", "rename the file"
        )
    config = parser.section(PackageConfig, data, "", package=package)
    for problem in _disagreements(data):
        parser.wrong(*problem)
    if parser.problems or config is None:
        raise ConfigErrors(parser.problems)
    return config


def _disagreements(document: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yield where the config contradicts itself, as far as its shape allows to find that."""
    methods = _names(document.get("methods"))
    for name in _names(document.get("constant_methods")):
        if name in methods:
            yield join("constant_methods", name), "is a method of the model too", "rename it"
    validation = document.get("validate")
    for name in _names(validation.get("methods")) if isinstance(validation, dict) else ():
        if name not in methods:
            yield join("validate.methods", name), "is no method here", did_you_mean(name, methods)
    yield from _wrong_sequences(document, validation, methods)


def _wrong_sequences(
    document: Mapping[str, Any], validation: object, methods: Sequence[str]
) -> Iterator[tuple[str, str, str]]:
    """Yield sequences that name no method, or methods that can't share state."""
    sequences = validation.get("sequences") if isinstance(validation, dict) else None
    part: Any = document
    for key in ("emit", "memory_planning", "share_mutable_buffers"):
        part = part.get(key) if isinstance(part, dict) else None
    for number, names in enumerate(sequences if isinstance(sequences, list) else ()):
        where = join("validate.sequences", number)
        for place, name in enumerate(names if isinstance(names, list) else ()):
            if isinstance(name, str) and name not in methods:
                yield join(where, place), f"'{name}' is no method here", did_you_mean(name, methods)
        if isinstance(names, list) and len({str(name) for name in names}) > 1 and part is not True:
            yield (
                where,
                "its methods share no state: each has buffers of its own",
                "say `emit: {memory_planning: {share_mutable_buffers: true}}`",
            )


def _names(mapping: object) -> list[str]:
    return [name for name in mapping if isinstance(name, str)] if isinstance(mapping, dict) else []


def _uses(document: Document) -> Iterator[Use]:
    """Yield where a config, which may have mistakes, names backends."""
    methods = document.data.get("methods")
    for method, written in methods.items() if isinstance(methods, dict) else ():
        path = join("methods", method)
        items = written.get("partitioners") if isinstance(written, dict) else None
        for number, item in enumerate(items if isinstance(items, list) else ()):
            for name in item if isinstance(item, dict) else [item]:
                if isinstance(name, str) and name in BACKENDS:
                    yield Use(document, join(join(path, "partitioners"), number), name)
        quantize = written.get("quantize") if isinstance(written, dict) else None
        name = quantize.get("quantizer") if isinstance(quantize, dict) else None
        if isinstance(name, str) and name in BACKENDS:
            yield Use(document, join(path, "quantize"), name)
