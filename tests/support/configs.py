"""Configs from a folder or from plain data, parsed as the plan parses them."""

import os
from types import SimpleNamespace

from pipeline.config.compose import Folder
from pipeline.config.parser import parse_document, parse_package
from pipeline.store.errors import Problem
from pipeline.store.settings import Environment
from pipeline.store.workspace import makes_packages


class _All:
    """A set that contains every variable name."""

    def __contains__(self, name):
        return True


def environment(values=os.environ):
    """Return an environment in which configs may read every variable."""
    return Environment(_All(), values=values)


def read_configs(folder, values=os.environ):
    """Read all configs of a folder but hidden ones; a missing folder has none.

    The result holds, keyed by package, the valid `configs` with their `documents`, and the
    `problems` of invalid ones.
    """
    files = Folder(folder, environment(values))
    makers = {}
    for stem, paths in files.files.items():
        for path in paths if makes_packages(stem) else ():
            for package in files.compose(path).packages:
                makers.setdefault(package, []).append(files.compose(path))
    parsed = {package: parse_package(package, makes) for package, makes in makers.items()}
    configs, documents, all_problems = {}, {}, {}
    for package, (config, document, problems) in parsed.items():
        if problems:
            all_problems[package] = problems
        else:
            configs[package], documents[package] = config, document
    return SimpleNamespace(
        packages=list(parsed), configs=configs, documents=documents, problems=all_problems
    )


def parse_config(package, data, file):
    """Parse plain data as if it had been read from `file`."""

    def problem(path, what, known="", at=""):
        return Problem(file, path, what, known)

    return parse_document(package, SimpleNamespace(data=data, problem=problem, problems=()))
