"""Adds the config keys of features to the sections of a config (`pipeline.moments`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from pydantic import create_model

from pipeline.backends.options import Options
from pipeline.moments import find_features, load

_Section = TypeVar("_Section", bound=Options)
# Package keys that need a feature, with its name; without it they are refused.
PACKAGE_KEYS = {"family": "families", "toolchain": "toolchains"}


def open_to_features(section: str) -> Callable[[type[_Section]], type[_Section]]:
    """Return a decorator that adds the fields of features to a section's model.

    Args:
        section: the path of the section, for example `validate.gates`.
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
