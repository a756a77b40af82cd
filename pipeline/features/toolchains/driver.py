"""Runs command lines in the Python of another toolchain, with this installation's code.

That Python plans, keys and builds with the contents of its own environment: keys hold its
distributions, catalogues belong to its ExecuTorch, and workers are its own. Our code is not
installed there; a folder with links to our code, and to nothing else of this environment, is on its
path.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from pipeline.features.toolchains.environments import DISTRIBUTION, find_python
from pipeline.features.toolchains.routing import (
    DEFAULT_PYTHON,
    VARIABLE,
    present_toolchain,
)
from pipeline.store.digest import hash_json
from pipeline.store.places import TOOLCHAINS, default_root

_PACKAGE = Path(__file__).resolve().parents[2]


def run_elsewhere(name: str, words: Sequence[str], root: Path) -> None:
    """Replace this process with one of another toolchain that runs these words of a command line.

    Returns only if this process already belongs to that toolchain.

    Raises:
        PipelineError: there is no such toolchain, or it can't build.
    """
    if name == present_toolchain():
        return
    python = find_python(root, name)
    sys.stdout.flush()
    os.execve(python, make_command(python, words), make_environment(name, python))


def make_command(python: Path, words: Sequence[str]) -> list[str]:
    """Return the command that runs the words of a command line with another Python."""
    return [str(python), "-P", "-m", "doit", *words]


def make_environment(name: str, python: Path) -> dict[str, str]:
    """Return the environment variables for a process of a toolchain.

    Programs are looked up first in the toolchain's environment, and modules in the folder of our
    code.
    """
    prefix = python.parent.parent
    environment = dict(os.environ)
    environment[VARIABLE] = name
    environment.setdefault(DEFAULT_PYTHON, sys.executable)
    environment["VIRTUAL_ENV"] = str(prefix)
    _put_first(environment, "PATH", str(python.parent))
    _put_first(environment, "PYTHONPATH", str(link_code()))
    return environment


def _put_first(environment: dict[str, str], name: str, folder: str) -> None:
    folders = filter(None, environment.get(name, "").split(os.pathsep))
    others = [path for path in folders if path != folder]
    environment[name] = os.pathsep.join([folder, *others])


def link_code() -> Path:
    """Return a folder with links to our packages and to the metadata of our distribution.

    doit finds its commands by the metadata. The folder is made if it doesn't exist.
    """
    targets = _find_code()
    recipe = hash_json({name: str(path) for name, path in targets.items()})
    folder = default_root() / TOOLCHAINS / f"code-{recipe[:16]}"
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=".code-", dir=folder.parent))
    for name, path in targets.items():
        (draft / name).symlink_to(path)
    try:
        draft.rename(folder)
    except OSError:  # another process made the folder first
        for name in targets:
            (draft / name).unlink()
        draft.rmdir()
    return folder


def _find_code() -> Mapping[str, Path]:
    """Return the paths of this installation that another Python needs, by link name."""
    targets = {
        _PACKAGE.name: _PACKAGE,
        "pte_pipeline": _PACKAGE.with_name("pte_pipeline"),
    }
    try:
        record = getattr(distribution(DISTRIBUTION), "_path", None)
    except PackageNotFoundError:
        record = None
    if isinstance(record, Path):
        targets[record.name] = record
    return targets
