"""Templates of pages: Jinja's, with all that is put in escaped."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined


@cache
def _environment() -> Environment:
    return Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates", encoding="utf-8"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
        keep_trailing_newline=True,
    )


def page(template: str, **parts: Any) -> bytes:
    """HTML in UTF-8. Halves of characters, as names of files can hold, become question marks."""
    return _environment().get_template(template).render(**parts).encode(errors="replace")
