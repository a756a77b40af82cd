"""ExecuTorch's recipes by name.

A recipe of ExecuTorch is a quantizer and a partitioner with certain options. recipes.toml writes
these out.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

_FILE = Path(__file__).with_suffix(".toml")
RECIPES: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    tomllib.loads(_FILE.read_text(encoding="utf-8"))
)
