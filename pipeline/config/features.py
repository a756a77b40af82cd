"""Opens sections of a config to the keys that features bring (`pipeline.moments`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from pydantic import create_model

from pipeline.backends.options import Options
from pipeline.moments import find_features, load

_Section = TypeVar("_Section", bound=Options)
# The keys of a package that a build without these features refuses.
PACKAGE_KEYS = {"family": "families", "toolchain": "toolchains"}


def open_to_features(section: str) -> Callable[[type[_Section]], type[_Section]]:
    """Return a decorator of a section's model, which adds the fields of features to it.

    Args:
        section: the path of the section, such as `validate.gates`.
    """

    def add_fields(model: type[_Section]) -> type[_Section]:
        fields: dict[str, Any] = {}
        for feature in find_features():
            if section in feature.config:
                fields |= load(feature.config[section])()
        if not fields:
            return model
        return create_model(
            model.__name__,
            __base__=model,
            __module__=model.__module__,
            __doc__=model.__doc__,
            **fields,
        )

    return add_fields
