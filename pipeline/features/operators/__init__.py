"""Libraries of a team's own operators: modules and shared libraries that are loaded wherever a
package's programs are.

finding   which libraries a config may name, and their files
loading   loads them
inputs    what keys hold of them
planning  what is wrong with those that a config names
"""

from __future__ import annotations

from pipeline.moments import Feature, Setting
from pipeline.store.setting_table import parse_texts

FEATURE = Feature(
    "operators",
    "load libraries of a team's own operators",
    settings={
        "operators": Setting(
            parse_texts,
            "a list of modules and library paths",
            "Operator libraries that are loaded for every package and every exporter.",
        )
    },
    summarize="pipeline.features.operators.planning:summarize",
    planning="pipeline.features.operators.planning:LibraryPlanning",
    describe_key="pipeline.features.operators.planning:describe_key",
    user_code={"operators": "pipeline.features.operators.inputs:LibraryInputs"},
    load_libraries="pipeline.features.operators.loading:load_libraries",
)
