"""The environment variables of this project's settings."""

from __future__ import annotations

from pipeline.store.setting_table import find_settings, variable_of


def find_variables() -> dict[str, str]:
    """Return the environment variables for settings, by the name of the setting."""
    settings = find_settings().items()
    return {name: variable_of(name) for name, setting in settings if setting.has_variable}
