"""The key `family` of a package config."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Self

from pydantic import Field, model_validator

from pipeline.backends import Options
from pipeline.backends.options import rule
from pipeline.config.fields import WEIGHTS_FILE, Name, Weights

if TYPE_CHECKING:  # this module adds to its fields
    from pipeline.config.models import PackageConfig


class Family(Options):
    """The packages that share weights with this one, in `.ptd` files that all of them load."""

    shorthand: ClassVar[str] = "name"

    name: Name
    """The name of the family, the same in all its packages.

    Example: assistant
    """
    base: Name | None = None
    """The package whose weights the family shares. Only its weights are shared, so adding a package
    to the family changes no existing file. If `base` is not set, all weights that at least two
    packages have in common are shared.

    Example: assistant-base
    """
    share: Weights = Field(default={WEIGHTS_FILE: ("*",)})
    """The weights to share: by default all, in <name>.ptd. A list of modules or patterns of
    qualified names selects the weights to share; a mapping assigns such a list to each file.

    Example: {foundation: [base]}
    """

    @model_validator(mode="after")
    def _check_share(self) -> Self:
        if not self.share:
            raise rule(
                "must share something; without `family` a package shares nothing"
            )
        return self

    @property
    def files(self) -> dict[str, tuple[str, ...]]:
        """The patterns of the shared weights, by the stem of the file."""
        files = {}
        for file, policy in self.share.items():
            files[self.name if file == WEIGHTS_FILE else file] = policy
        return files


def add_fields() -> dict[str, tuple[Any, Any]]:
    """Return the field that this feature adds to package configs."""
    text = (
        "The family of packages that share weights with this one, written as the family's name "
        "or as {name, base, share}."
    )
    return {"family": (Family | None, Field(default=None, description=text))}


def summarize(config: PackageConfig, has_variables: bool) -> Mapping[str, Any] | None:
    """Return the family settings in a link's key, or None if the package has no family."""
    family: Family | None = getattr(config, "family")  # noqa: B009 - mypy knows no such field
    if family is None:
        return None
    share = [[file, list(patterns)] for file, patterns in family.files.items()]
    return {"name": family.name, "base": family.base, "share": share}
