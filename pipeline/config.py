"""Package configs: from `partition_configs/<package>.yaml` to a PackageConfig.

Reading a file does I/O; parsing is a pure function of its data. Every mistake that can be found is
found at once and told as a Problem, in this project's words and never in pydantic's. Knows no
torch.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipeline.backends import PartitionerSpec, QuantizeConfig
from pipeline.config_models import (
    NAME_PATTERN,
    RULES,
    EdgeConfig,
    EmitConfig,
    Gates,
    LayoutConfig,
    MethodConfig,
    PackageConfig,
    PassSpec,
    ValidateConfig,
)
from pipeline.config_parser import Parser, shown
from pipeline.errors import ConfigErrors, Problem, did_you_mean
from pipeline.strict_yaml import join, read_yaml
from pipeline.workspace import config_files

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
    "read_config",
    "read_configs",
    "read_files",
]


@dataclass(frozen=True)
class Configs:
    """The configs of a folder by package: the good ones and their data as read, what is wrong with
    the others, and the name of each one's file in messages."""

    configs: dict[str, PackageConfig] = field(default_factory=dict)
    data: dict[str, dict[str, Any]] = field(default_factory=dict)
    problems: dict[str, tuple[Problem, ...]] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)


def read_configs(folder: Path) -> Configs:
    """All configs of a folder but hidden ones; none where there is no folder. A bad config spoils
    no other. Raises PipelineError for a folder that cannot be read."""
    return read_files(path for paths in config_files(folder).values() for path in paths)


def read_files(paths: Iterable[Path]) -> Configs:
    found = Configs()
    for path in paths:
        _add(found, path)
    return found


def _add(found: Configs, path: Path) -> None:
    package, file = path.stem, _shown_file(path)
    try:
        if package in found.files:
            raise ConfigErrors(
                [Problem(file, "", f"makes the package of {found.files[package]} too", "keep one")]
            )
        found.files[package] = file
        _, data = read_config(path)
        found.configs[package] = parse_config(package, data, file)
        found.data[package] = data
    except ConfigErrors as errors:
        found.configs.pop(package, None)
        found.data.pop(package, None)
        found.problems[package] = (*found.problems.get(package, ()), *errors.problems)


def read_config(path: Path) -> tuple[str, dict[str, Any]]:
    """The package that a file is named after, and what the file holds, a mapping. Raises
    ConfigErrors."""
    file = _shown_file(path)
    return path.stem, _document(read_yaml(path, file), file)


def _shown_file(path: Path) -> str:
    name = f"{path.parent.name}/{path.name}" if path.parent.name else path.name
    return name if name.isprintable() else ascii(name)


def _document(data: object, file: str) -> dict[str, Any]:
    if isinstance(data, dict):
        return data
    raise ConfigErrors(
        [Problem(file, "", f"is {shown(data)}, must be a mapping", "begin with `model:`")]
    )


def parse_config(
    package: str, data: object, file: str, known_methods: Collection[str] | None = None
) -> PackageConfig:
    """The config that the data of a file stands for.

    Args:
        package: the stem of the file's name.
        file: how messages call the file.
        known_methods: the methods of the model; None while they are not known, and then nothing
            is said of methods that it lacks or that the config leaves out.

    Raises:
        ConfigErrors: everything that is wrong.
    """
    document = _document(data, file)
    parser = Parser(file)
    if not re.fullmatch(NAME_PATTERN, package):
        parser.wrong(
            "", f"cannot name a package: {shown(package)} {RULES[NAME_PATTERN]}", "rename the file"
        )
    config = parser.section(PackageConfig, document, "", package=package)
    for problem in _disagreements(document, known_methods):
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


def _names(mapping: object) -> list[str]:
    return [name for name in mapping if isinstance(name, str)] if isinstance(mapping, dict) else []
