"""The key `publish` of a package config, which no build depends on and no action key includes."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from pipeline.backends import Options

_Text = Annotated[str, Field(min_length=1, max_length=2000)]


class Publish(Options):
    """Facts for the model card that the build can't know."""

    licence: _Text | None = None
    """The licence of the model: an SPDX identifier or a sentence.

    Example: apache-2.0
    """
    source_url: _Text | None = None
    """The address of the model's origin, such as a repository or a paper.

    Example: https://example.com/models/vision
    """
    description: _Text | None = None
    """The uses that the model is meant for, and those that it should not have.

    Example: Classifies photographs of plants.
    """


def add_fields() -> dict[str, tuple[Any, Any]]:
    """Return the `publish` field of package configs."""
    text = (
        "Facts that the build can't know, for the model card that `doit publish` writes: {licence, "
        "source_url, description}. Changing them doesn't rebuild anything."
    )
    return {"publish": (Publish | None, Field(default=None, description=text))}
