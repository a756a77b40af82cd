"""The content of `doit help KEY` as data: a terminal can't wait for pydantic or follow links."""

from __future__ import annotations

import json
from pathlib import Path

import pipeline.features.help
from tools.reference.config import describe_keys

FILE = Path(pipeline.features.help.__file__).with_name("config_keys.json")


def make_key_data() -> str:
    """Return the text of the data file."""
    return json.dumps(describe_keys(), indent=1, ensure_ascii=False) + "\n"
