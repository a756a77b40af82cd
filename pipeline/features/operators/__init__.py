"""Libraries of custom operators (modules or shared libraries), loaded with a package's programs.

finding   which libraries a config may name, and their files
loading   loads the libraries
inputs    the digests and versions that go into keys
planning  finds mistakes in the libraries that a config names
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from pipeline.moments import Feature, Setting
from pipeline.store.setting_table import checked, parse_text


def parse_texts(value: Any, _: Path) -> tuple[str, ...]:
    """Return the strings of a list, or of an environment variable that separates them as PATH does.

    Raises ValueError for any other value.
    """
    values = value.split(os.pathsep) if isinstance(value, str) else value
    return tuple(parse_text(text) for text in checked(values, isinstance(values, list)))


FEATURE = Feature(
    "operators",
    "load a team's own operator libraries (`operators`)",
    settings={
        "operators": Setting(
            parse_texts,
            "a list of modules and library paths",
            "The operator libraries that are loaded for every package and every exporter.",
        )
    },
    summarize="pipeline.features.operators.planning:summarize",
    planning="pipeline.features.operators.planning:LibraryPlanning",
    describe_key="pipeline.features.operators.planning:describe_key",
    user_code={"operators": "pipeline.features.operators.inputs:LibraryInputs"},
    load_libraries="pipeline.features.operators.loading:load_libraries",
)
