"""Builds the runner when it is first needed.

Runners are kept in the user's cache folder, keyed by their sources, SDK and compiler. A program
that has its final name is complete.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from filelock import FileLock

from pipeline.features.native.setups import CROSS_COMPILER, SOURCES, Setup
from pipeline.store.digest import hash_file, hash_json
from pipeline.store.errors import PipelineError
from pipeline.store.places import TOOLCHAINS, default_root

PROGRAM = "pte_runner"
_SECONDS = 600
_LAST_LINES = 3
_OF_AARCH64 = ("-DCMAKE_SYSTEM_NAME=Linux", "-DCMAKE_SYSTEM_PROCESSOR=aarch64")


def find_command(setup: Setup, options: Sequence[str] = ()) -> list[str]:
    """Return the command of a device's runner, building the runner at the first call.

    Args:
        options: further options for CMake, such as `-DSANITIZE=ON`.

    Raises:
        PipelineError: the runner can't run here or can't be built.
    """
    if setup.problem:
        raise PipelineError(f"{setup.device}: {setup.problem}")
    if setup.runner:
        return [str(setup.runner)]
    folder = default_root() / TOOLCHAINS / f"runner-{_identify(setup, options)[:16]}"
    program = folder / PROGRAM
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(folder.with_name(f"{folder.name}.lock")):
        if not program.exists():
            _build(setup, options, folder)
    return [*setup.emulator, str(program)]


def _identify(setup: Setup, options: Sequence[str]) -> str:
    """Return the digest of everything that goes into a runner."""
    assert setup.sdk is not None
    compiler = _run(setup.device, [setup.compiler, "--version"]).splitlines()
    sources = {
        path.name: hash_file(path)
        for path in sorted(SOURCES.iterdir())
        if path.is_file()
    }
    libraries = {
        path.name: hash_file(path) for path in sorted(setup.sdk.glob("lib/*.so"))
    }
    return str(
        hash_json([sources, libraries, compiler[:1], list(options), str(setup.sdk)])
    )


def _build(setup: Setup, options: Sequence[str], folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)  # left over from a build that was killed
    folder.mkdir()
    build = folder / "build"
    system = _OF_AARCH64 if setup.compiler == CROSS_COMPILER else ()
    configure = [
        "cmake",
        "-S",
        str(SOURCES),
        "-B",
        str(build),
        f"-DEXECUTORCH_SDK={setup.sdk}",
        f"-DCMAKE_CXX_COMPILER={setup.compiler}",
        *system,
        *options,
    ]
    print(f"{setup.device}: building the runner in {folder}", flush=True)
    for command in (configure, ["cmake", "--build", str(build), "--parallel", "2"]):
        _run(setup.device, command)
    for path in (*build.glob("_C.*.so"), build / PROGRAM):
        path.replace(folder / path.name)
    shutil.rmtree(build)


def _run(device: str, command: Sequence[str]) -> str:
    """Return the output of a command. Raises PipelineError with its first errors if it fails."""
    try:
        answer = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=_SECONDS
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise PipelineError(f"{device}: {command[0]} does not run: {error}") from None
    if answer.returncode:
        lines = (answer.stderr or answer.stdout).strip().splitlines()
        errors = [line for line in lines if "error" in line.lower()] or lines
        reason = "; ".join(errors[:_LAST_LINES]) or f"exit status {answer.returncode}"
        raise PipelineError(f"{device}: the runner can't be built: {reason}")
    return answer.stdout
