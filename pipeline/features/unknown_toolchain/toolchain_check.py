"""Checks at the start of a command that this release knows the installed toolchain."""

from __future__ import annotations

import sys
from pathlib import Path

from pipeline.moments import show_error
from pipeline.store.digest import hash_json
from pipeline.store.errors import PipelineError
from pipeline.store.setting_table import variable_of
from pipeline.store.settings import in_ci
from pipeline.store.settings_reader import TABLE, open_settings
from pipeline.store.toolchain import code, toolchain
from pipeline.store.visible import one_line
from pipeline.store.workspace import Workspace

_SETTING = "unknown_toolchain"


def check_toolchain(workspace: Workspace, builds: bool) -> None:
    """Warn, in one line, about a toolchain that this release doesn't know.

    Args:
        builds: whether the command builds something. Building is refused if `CI=true`, unless the
            setting says otherwise, and always if ExecuTorch lacks a name that the core uses.

    Raises:
        PipelineError: building is refused.
    """
    # Cached, because importing the releases would take 1 ms of a no-op run.
    problem = workspace.file_digests.cached(
        Path(__file__),
        "unknown toolchain",
        describe_installed,
        hash_json([code("describe"), toolchain()]),
    )
    if not problem:
        return
    if builds and _is_refused(workspace):
        remedy = (
            f'`{_SETTING} = "allow"` in [{TABLE}], or {variable_of(_SETTING)}=allow,'
        )
        raise PipelineError(f"{problem}; set {remedy} to build with it anyway")
    if builds:
        _refuse_missing_names(problem)
    warning = show_error(one_line(f"warning: {problem}"), "warning")
    print(warning, file=sys.stderr, flush=True)


def describe_installed(_: Path) -> str:
    """Return what `describe_unknown` says of the installed versions, all of them in every key."""
    from pipeline.store.releases import describe_unknown, installed_versions

    return describe_unknown(installed_versions())


def _refuse_missing_names(problem: str) -> None:
    from pipeline.features.unknown_toolchain.used_names import (
        find_missing,  # reads all of the core: 0.7 s
    )

    missing = find_missing()
    if missing:
        raise PipelineError(
            f"{problem}; the installed executorch lacks what every build uses: "
            f"{', '.join(missing)}"
        )


def _is_refused(workspace: Workspace) -> bool:
    setting = open_settings(workspace.root).get(_SETTING)
    if setting:
        return bool(setting == "refuse")
    return in_ci()
