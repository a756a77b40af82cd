"""The key `publish` of a package config, which no build depends on and no action's key holds."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from pipeline.backends import Options

_Text = Annotated[str, Field(min_length=1, max_length=2000)]


class Publish(Options):
    """What the model card of a package says that no build knows."""

    licence: _Text | None = None
    """The licence of the model: an SPDX identifier, or a sentence.

    Example: apache-2.0
    """
    source_url: _Text | None = None
    """Where the model comes from: a repository, a paper, a page.

    Example: https://example.com/models/vision
    """
    description: _Text | None = None
    """What the model does, and what it must not be used for.

    Example: Classifies photographs of plants.
    """


def add_fields() -> dict[str, tuple[Any, Any]]:
    """Return the field of packages."""
    text = (
        "What the model card of `doit publish` says beside what the build knows: {licence, "
        "source_url, description}. Changing it lowers nothing."
    )
    return {"publish": (Publish | None, Field(default=None, description=text))}
