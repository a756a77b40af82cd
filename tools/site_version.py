"""A hook of mkdocs: the foot of each page of the site names the version that the page is of."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

_PROJECT = Path(__file__).parents[1] / "pyproject.toml"


def on_config(config: Any) -> Any:
    """Return the config of the site with its foot, from the version in pyproject.toml."""
    project = tomllib.loads(_PROJECT.read_text(encoding="utf-8"))["project"]
    config.copyright = f"{project['name']} {project['version']}, for ExecuTorch 1.4 and 1.5"
    return config
