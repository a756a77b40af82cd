"""Configs of a folder, or of plain data, as the plan parses them."""

import os
from types import SimpleNamespace

from pipeline.config.compose import Folder
from pipeline.config.load import Configs, parse_document
from pipeline.store.errors import Problem
from pipeline.store.workspace import makes_packages


def read_configs(folder, environment=os.environ):
    """Read all configs of a folder but hidden ones; none where there is no folder."""
    files = Folder(folder, environment)
    found = Configs()
    for stem, paths in files.files.items():
        for path in paths if makes_packages(stem) else ():
            composition = files.compose(path)
            for package in composition.packages:
                found.add(composition, package)
    return found


def parse_config(package, data, file):
    """Parse plain data as if it stood in `file`."""

    def problem(path, what, known="", at=""):
        return Problem(file, path, what, known)

    return parse_document(package, SimpleNamespace(data=data, problem=problem, problems=()))
