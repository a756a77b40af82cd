"""Package configs: from the files in `partition_configs/` to a PackageConfig for each package.

Reading files does I/O; parsing is a pure function of what they hold. Every mistake that can be
found is found at once and told as a Problem, in this project's words and never in pydantic's. Knows
no torch.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
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
    """Where a config names a backend of the catalogue."""

    document: Document
    path: str
    backend: str


@dataclass(frozen=True)
class Configs:
    """The configs of a folder by package: the good ones and the documents that they were parsed
    from, what is wrong with the others, of all of them where they name which backend, as far as
    that can be read, and the name of the file in messages."""

    configs: dict[str, PackageConfig] = field(default_factory=dict)
    documents: dict[str, Document] = field(default_factory=dict)
    problems: dict[str, tuple[Problem, ...]] = field(default_factory=dict)
    uses: dict[str, tuple[Use, ...]] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)

    def add(self, composition: Composition, package: str) -> None:
        """Takes in a package of a file; of a package that two files make there is no config."""
        try:
            self._add(composition, package)
        except ConfigErrors as errors:
            self.configs.pop(package, None)
            self.documents.pop(package, None)
            self.problems[package] = (*self.problems.get(package, ()), *errors.problems)

    def _add(self, composition: Composition, package: str) -> None:
        other = self.files.setdefault(package, composition.file)
        if other != composition.file:
            what = f"makes the package '{package}', as {other} does"
            raise ConfigErrors([Problem(composition.file, "", what, "keep one")])
        if composition.problems:
            raise ConfigErrors(composition.problems)
        document = composition.documents[package]
        self.uses[package] = tuple(_uses(document))
        self.configs[package] = parse_document(package, document)
        self.documents[package] = document


def read_configs(folder: Path, environment: Mapping[str, str] = os.environ) -> Configs:
    """All configs of a folder but hidden ones; none where there is no folder. A bad config spoils
    no other. Raises PipelineError for a folder that cannot be read."""
    files = Folder(folder, environment)
    found = Configs()
    for path in files.paths:
        composition = files.compose(path)
        for package in composition.packages:
            found.add(composition, package)
    return found


def parse_document(
    package: str, document: Document, known_methods: Collection[str] | None = None
) -> PackageConfig:
    """As `parse_config`; each mistake is told of the place where it was written."""
    parser = Parser(document.problem, KEYS)
    try:
        config = _parsed(parser, package, document.data, known_methods)
    except ConfigErrors as errors:
        told = {(p.file, p.line, p.path) for p in document.problems}
        more = [p for p in errors.problems if (p.file, p.line, p.path) not in told]
        raise ConfigErrors([*document.problems, *more]) from None
    if document.problems:
        raise ConfigErrors(document.problems)
    return config


def parse_config(
    package: str, data: object, file: str, known_methods: Collection[str] | None = None
) -> PackageConfig:
    """The config that plain data stands for.

    Args:
        package: what the config is a config of.
        file: how messages call the file.
        known_methods: the methods of the model; None while they are not known, and then nothing
            is said of methods that it lacks or that the config leaves out.

    Raises:
        ConfigErrors: everything that is wrong.
    """
    parser = Parser(lambda path, what, known, at: Problem(file, path, what, known))
    return _parsed(parser, package, data, known_methods)


def _parsed(
    parser: Parser, package: str, data: object, known_methods: Collection[str] | None
) -> PackageConfig:
    if not isinstance(data, dict):
        parser.wrong("", f"is {shown(data)}, must be a mapping", "begin with `model:`")
        raise ConfigErrors(parser.problems)
    if not re.fullmatch(NAME_PATTERN, package):
        parser.wrong(
            "", f"cannot name a package: {shown(package)} {RULES[NAME_PATTERN]}", "rename the file"
        )
    config = parser.section(PackageConfig, data, "", package=package)
    for problem in _disagreements(data, known_methods):
        parser.wrong(*problem)
    if parser.problems or config is None:
        raise ConfigErrors(parser.problems)
    return config


def _disagreements(
    document: Mapping[str, Any], known_methods: Collection[str] | None
) -> Iterator[tuple[str, str, str]]:
    """Where the config contradicts itself or its model, as far as its shape allows to say."""
    methods = _names(document.get("methods"))
    for name in _names(document.get("constant_methods")):
        if name in methods or name in (known_methods or ()):
            yield join("constant_methods", name), "is a method of the model too", "rename it"
    validation = document.get("validate")
    for name in _names(validation.get("methods")) if isinstance(validation, dict) else ():
        if name not in methods:
            yield join("validate.methods", name), "is no method here", did_you_mean(name, methods)
    yield from _of_sequences(document, validation, methods)
    if known_methods is None or "methods" not in document:
        return
    for name in methods:
        if name not in known_methods:
            hint = did_you_mean(name, known_methods)
            yield join("methods", name), "is no method of the model", hint
    for name in known_methods:
        if name not in methods:
            yield (
                "methods",
                f"leaves out '{name}', a method of the model",
                "add it; `partitioners: []` is for portable operators only",
            )


def _of_sequences(
    document: Mapping[str, Any], validation: object, methods: Sequence[str]
) -> Iterator[tuple[str, str, str]]:
    """Sequences of what is no method, or of methods that can't share state."""
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
    """Of a config that may have mistakes."""
    methods = document.data.get("methods")
    for method, told in methods.items() if isinstance(methods, dict) else ():
        path = join("methods", method)
        items = told.get("partitioners") if isinstance(told, dict) else None
        for number, item in enumerate(items if isinstance(items, list) else ()):
            for name in item if isinstance(item, dict) else [item]:
                if isinstance(name, str) and name in BACKENDS:
                    yield Use(document, join(join(path, "partitioners"), number), name)
        quantize = told.get("quantize") if isinstance(told, dict) else None
        name = quantize.get("quantizer") if isinstance(quantize, dict) else None
        if isinstance(name, str) and name in BACKENDS:
            yield Use(document, join(path, "quantize"), name)
