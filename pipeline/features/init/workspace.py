"""`doit init`: makes a workspace with a minimal exporter and a config."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

from pipeline.store.errors import PipelineError
from pipeline.store.files import write_atomically

_DODO = '''\
"""The tasks of this workspace; `doit help` lists them."""

from pte_pipeline.tasks import *
'''

_MODEL = '''\
"""The model `hello`: two methods that share their weights."""

import torch
from torch.export import Dim, export


class Hello(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = torch.nn.Linear(16, 32)
        self.head = torch.nn.Linear(32, 4)

    def forward(self, x):
        return torch.relu(self.encoder(x))


class Classify(torch.nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x):
        return torch.softmax(self.model.head(self.model(x)), dim=-1)


def export_methods():
    torch.manual_seed(0)
    model = Hello().eval().requires_grad_(False)
    classify = Classify(model)
    inputs = (torch.randn(2, 16),)
    batch = {"x": {0: Dim("batch", max=8)}}
    return {  # each with the module that it is compared with
        "embed": (export(model, inputs, dynamic_shapes=batch), model),
        "classify": (export(classify, inputs, dynamic_shapes=batch), classify),
    }
'''

_CONFIG = """\
model: hello                        # models/hello.py
target: android-arm64               # a label for people and reports
methods:
  embed: {partitioners: [xnnpack]}
  classify: {partitioners: [xnnpack]}
validate: {gates: {max_size: 1MB}}  # `doit help validate`
"""

_IGNORED = """\
build/
.doit.sqlite3*
__pycache__/
"""

FILES = {
    "dodo.py": _DODO,
    "models/hello.py": _MODEL,
    "partition_configs/hello.yaml": _CONFIG,
    ".gitignore": _IGNORED,
}


def run(words: Sequence[str], root: Path) -> int:
    """Make a workspace in the folder that `words` names, or here; return the exit status.

    Args:
        root: the folder of the nearest dodo file; without one, the current folder.

    Raises:
        PipelineError: the command line is invalid, or the folder lies inside a workspace.
    """
    folder = Path.cwd() / (words[0] if words else "")
    # A folder whose name starts with a dash is most likely a mistyped option.
    if len(words) > 1 or folder.name.startswith("-"):
        raise PipelineError("usage: doit init [folder]")
    is_below = folder != root and folder.is_relative_to(root)
    if is_below and (root / "dodo.py").is_file():
        raise PipelineError(
            f"{root} is already a workspace, and this folder is inside it"
        )
    for line in make_workspace(folder):
        print(line)
    return 0


def make_workspace(folder: Path) -> Iterator[str]:
    """Write the files of a new workspace, and yield a line for each.

    The folder is created if it doesn't exist. Existing files are left alone.

    Raises:
        PipelineError: a file can't be written.
    """
    # Checked before anything is written, or the example's own config would count.
    has_packages = any((folder / "partition_configs").glob("*.y*ml"))
    try:
        for name, text in FILES.items():
            path = folder / name
            example = name.startswith(("models/", "partition_configs/"))
            if path.exists():
                yield f"{name}: already exists"
            elif not (
                example and has_packages
            ):  # packages exist, so no example is needed
                path.parent.mkdir(parents=True, exist_ok=True)
                write_atomically(path, text.encode())
                yield f"{name}: new"
    except OSError as error:
        fault = error.strerror
        if isinstance(error, FileExistsError | NotADirectoryError):
            fault = "is a file, not a folder"
        raise PipelineError(f"{error.filename}: {fault}") from error
    if folder == Path.cwd():
        change_folder = ""
    else:
        change_folder = f"cd {shlex.quote(os.path.relpath(folder))} && "
    yield f"`{change_folder}doit` builds the package and validates it"
