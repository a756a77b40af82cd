"""Edits of config files, for commands that write results there, such as `doit tune --write`."""

from __future__ import annotations

from pipeline.moments import Feature

FEATURE = Feature(
    "config_edits",
    "write settings into config files without losing comments and layout, for `--write`",
    edit_config="pipeline.features.config_edits.edit:edit_members",
)
