"""A mkdocs hook that adds the documented version to the footer of each page."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

_PROJECT = Path(__file__).parents[1] / "pyproject.toml"


def on_config(config: Any) -> Any:
    """Return the site's config with the version from pyproject.toml in its footer."""
    project = tomllib.loads(_PROJECT.read_text(encoding="utf-8"))["project"]
    config.copyright = f"{project['name']} {project['version']}, for ExecuTorch 1.4 and 1.5"
    return config
