"""The settings of a workspace."""

from __future__ import annotations

from collections.abc import Iterator

from pipeline.store.setting_table import SETTINGS, VARIABLES
from tools.reference.markdown import row


def settings() -> Iterator[str]:
    """Yield the table of all settings."""
    yield "| setting | variable | values | default | meaning |"
    yield "|---|---|---|---|---|"
    for name, each in SETTINGS.items():
        variable = f"`{VARIABLES[name]}`" if name in VARIABLES else ""
        yield row(f"`{name}`", variable, each.expected, each.default, each.meaning)
