"""The settings of a workspace."""

from __future__ import annotations

from collections.abc import Iterator

from pipeline.store.setting_table import find_settings, variable_of
from tools.reference.markdown import row


def settings() -> Iterator[str]:
    """Yield the table of all settings."""
    yield "| setting | variable | values | default | meaning |"
    yield "|---|---|---|---|---|"
    for name, setting in find_settings().items():
        variable = f"`{variable_of(name)}`" if setting.has_variable else "none"
        yield row(f"`{name}`", variable, setting.expected, setting.default, setting.meaning)
