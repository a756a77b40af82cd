"""Installs the environment of a toolchain whose setting lists requirements.

The environment is kept in the user's cache folder, under a digest of the Python version and all
requirements; the file `complete` in it marks a finished installation.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from filelock import FileLock

from pipeline.store.digest import hash_json
from pipeline.store.errors import PipelineError
from pipeline.store.places import TOOLCHAINS, default_root
from pipeline.store.releases import RELEASES


def install_environment(
    name: str, texts: Sequence[str], requirements: Sequence[str]
) -> Path:
    """Return the Python of an environment with these distributions; the first call installs it.

    Args:
        texts: the requirements of the toolchain; a matching torch is added.
        requirements: the further requirements of pte-pipeline.

    Raises:
        PipelineError: pip, or uv, can't install it.
    """
    all_requirements = [*texts, *_find_torch(texts), *requirements]
    recipe = hash_json([sys.version, sorted(all_requirements)])
    folder = default_root() / TOOLCHAINS / f"{name}-{recipe[:16]}"
    python = folder / "bin" / "python"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(
        folder.with_name(f"{folder.name}.lock")
    ):  # only one of several builds installs
        if not (folder / "complete").exists():
            print(
                f"toolchain {name}: installing {' '.join(texts)} into {folder}",
                flush=True,
            )
            _install(name, folder, all_requirements)
    return python


def _install(name: str, folder: Path, all_requirements: Sequence[str]) -> None:
    """Make an environment in a folder, and install requirements there. Raises PipelineError."""
    shutil.rmtree(folder, ignore_errors=True)  # left by a run that was killed
    python = folder / "bin" / "python"
    uv = shutil.which("uv")
    if uv:
        make = [uv, "venv", "--quiet", "--python", sys.executable, str(folder)]
        install = [uv, "pip", "install", "--quiet", "--python", str(python)]
    else:
        make = [sys.executable, "-P", "-m", "venv", str(folder)]
        install = [str(python), "-P", "-m", "pip", "install", "--quiet"]
    for command in (make, [*install, *all_requirements]):
        _run(name, command)
    (folder / "complete").touch()


def _find_torch(texts: Sequence[str]) -> list[str]:
    """Return the torch that matches a toolchain's ExecuTorch, unless the toolchain names one.

    Newer releases of ExecuTorch don't require torch any more.
    """
    if any(text.startswith("torch=") for text in texts):
        return []
    for release in RELEASES:
        if f"executorch=={release.executorch}" in texts:
            return [f"torch=={release.torch[0]}"]
    return [f"torch=={RELEASES[-1].torch[0]}"]


def _run(name: str, command: Sequence[str]) -> None:
    """Run an installer's command. Raises PipelineError with its last line if it fails."""
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    if answer.returncode:
        output = (answer.stderr or answer.stdout).strip()
        reason = (
            output.splitlines()[-1] if output else f"exit status {answer.returncode}"
        )
        raise PipelineError(f"toolchain {name}: could not be installed: {reason}")
