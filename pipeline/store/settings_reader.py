"""Reads single settings of a workspace.

They are in `[tool.pte-pipeline]` in its `pyproject.toml` and in the environment, which takes
precedence.

This module knows no setting by name; `settings.py` and features combine settings into records.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pipeline.moments import has_feature
from pipeline.store.errors import PipelineError, did_you_mean, shown
from pipeline.store.files import read_text_file
from pipeline.store.setting_table import find_settings, variable_of

TABLE = "tool.pte-pipeline"
UNTRUSTED_VARIABLE = "PTE_PIPELINE_UNTRUSTED"
# The features of this package that add settings. If a feature's folder was deleted, its settings
# must raise an error rather than go unnoticed.
_FEATURES_WITH_SETTINGS = (
    "native",
    "operators",
    "remote",
    "toolchains",
    "unknown_toolchain",
)


class SettingsReader:
    """Reads settings of the workspace at `root` from its table and the environment.

    Attributes:
        table: the settings in the workspace's file that this build trusts.
        untrusted: whether the build is untrusted, and so follows its environment alone, except for
            `jobs`.
    """

    def __init__(self, root: Path, table: Mapping[str, Any], untrusted: bool) -> None:
        self.root = root
        self.table = table
        self.untrusted = untrusted

    def is_set(self, name: str) -> bool:
        return self._text(name) is not None or name in self.table

    def get(self, name: str, default: Any = None) -> Any:
        """Return the value of a setting, or the default if it isn't set. Raises PipelineError."""
        value = self._text(name) or self.table.get(name)
        if value is None:
            return default
        setting = find_settings()[name]
        try:
            return setting.parse(value, self.root)
        except (
            OverflowError,
            RuntimeError,
            ValueError,
        ):  # RuntimeError: unknown home folder
            message = (
                f"{self.place_of(name)}: is {shown(value)}; must be {setting.expected}"
            )
            raise PipelineError(message) from None

    def place_of(self, name: str) -> str:
        """Return the variable or the key that a setting's value comes from."""
        return (
            variable_of(name) if self._text(name) else f"pyproject.toml: {TABLE}.{name}"
        )

    def _text(self, name: str) -> str | None:
        """Return the value of a setting's environment variable, or None if it is unset or empty."""
        setting = find_settings().get(name)
        if setting is None or not setting.has_variable:
            return None
        return os.environ.get(variable_of(name)) or None


def open_settings(root: Path) -> SettingsReader:
    """Return a reader for the settings of the workspace at `root`.

    Raises PipelineError if its file can't be read, or for all wrong settings together.
    """
    untrusted = os.environ.get(UNTRUSTED_VARIABLE, "") not in ("", "0", "false")
    table = _read_table(root / "pyproject.toml")
    mistakes = list(_find_unknown(table))
    if untrusted:
        table = {name: value for name, value in table.items() if name == "jobs"}
    reader = SettingsReader(root, table, untrusted)
    for name in find_settings():
        try:
            reader.get(name)
        except PipelineError as error:
            mistakes.append(error)
    if mistakes:
        raise PipelineError(*map(str, mistakes))
    return reader


def _find_unknown(table: Iterable[str]) -> Iterator[PipelineError]:
    """Yield an error for each setting that this installation lacks."""
    settings = find_settings()
    missing = tuple(f for f in _FEATURES_WITH_SETTINGS if not has_feature(f))
    for feature in missing:
        places = [
            f"pyproject.toml: {TABLE}.{name}"
            for name in table
            if name.startswith(feature)
        ]
        variable = variable_of(feature)
        if os.environ.get(variable):
            places.append(variable)
        for place in places:
            yield PipelineError(
                f'{place}: this installation has no feature "{feature}"; unset it'
            )
    for name in table:
        if name not in settings and not name.startswith(missing):
            guess = did_you_mean(name, settings)
            yield PipelineError(
                f"pyproject.toml: {TABLE}: unknown key {shown(name)}; {guess}"
            )


def _read_table(path: Path) -> Mapping[str, Any]:
    try:
        file = tomllib.loads(read_text_file(path).decode())
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise PipelineError(f"{path.name}: cannot be read: {error.strerror}") from error
    except RecursionError as error:
        raise PipelineError(f"{path.name}: is nested too deeply") from error
    except ValueError as error:  # not TOML, or not UTF-8
        raise PipelineError(f"{path.name}: {error}") from error
    settings: Any = file
    for place, key in (("tool", "tool"), (TABLE, "pte-pipeline")):
        settings = settings.get(key, {})
        if not isinstance(settings, dict):
            raise PipelineError(
                f"{path.name}: {place}: is {shown(settings)}; must be a table"
            )
    return settings
