"""Enumerated shapes as configs list them: the checks that don't need the program.

A method's inputs and sizes are only known when it is lowered (see `shapes.py`). Imports no torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import PlainValidator, WithJsonSchema

from pipeline.backends.options import rule

ALL = "all"
MOST_SHAPES = 128  # Core ML's limit per input
# The targets on which at most one input may have several shapes: iOS 15 to 17, and other systems'
# versions of the same years.
_ONE_INPUT = frozenset(
    {
        "ios15",
        "ios16",
        "ios17",
        "macos12",
        "macos13",
        "macos14",
        "tvos15",
        "tvos16",
        "tvos17",
    }
    | {"watchos8", "watchos9", "watchos10"}
)
Shape = tuple[int, ...]


def takes_several(target: str | None) -> bool:
    """Return whether several inputs may have enumerated shapes on this target."""
    return target is not None and target not in _ONE_INPUT


def _parse(value: Any) -> str | dict[str, tuple[Shape, ...]]:
    """Parse the shapes in a config.

    Raises a single PydanticCustomError that names the input, while a union of types would raise one
    error per type.
    """
    if value == ALL:
        return ALL
    if not isinstance(value, Mapping) or not value:
        raise rule("must be all, or a mapping from inputs to lists of shapes")
    shapes = {name: _parse_list(name, listed) for name, listed in value.items()}
    lists = list(shapes.values())
    if len({len(listed) for listed in lists}) > 1:
        raise rule(
            "must have the same number of shapes for every input, since they are paired by position"
        )
    if len(set(zip(*lists, strict=True))) < len(lists[0]):
        raise rule(
            "must be different shapes, or for several inputs different combinations"
        )
    return shapes


def _parse_list(name: Any, listed: Any) -> tuple[Shape, ...]:
    if not isinstance(name, str):
        raise rule("must be a mapping whose keys are strings, the names of inputs")
    if not isinstance(listed, list | tuple) or not 2 <= len(listed) <= MOST_SHAPES:
        example = "[[1, 3, 8, 8], [1, 3, 16, 16]]"
        raise rule(
            f"must be a list of 2 to {MOST_SHAPES} shapes for {name}, such as {example}"
        )
    return tuple(_parse_shape(name, shape) for shape in listed)


def _parse_shape(name: str, shape: Any) -> Shape:
    sizes = shape if isinstance(shape, list | tuple) else ()
    if not sizes or any(
        type(size) is not int or not 1 <= size < 2**31 for size in sizes
    ):
        raise rule(
            f"must be whole numbers from 1 up in each shape for {name}: [1, 3, 8, 8]"
        )
    return tuple(sizes)


_LIST = {
    "type": "array",
    "minItems": 2,
    "maxItems": MOST_SHAPES,
    "items": {
        "type": "array",
        "minItems": 1,
        "items": {"type": "integer", "minimum": 1},
    },
}
_SCHEMA = {
    "anyOf": [
        {"const": ALL, "type": "string"},
        {
            "type": "object",
            "minProperties": 1,
            "additionalProperties": False,
            "patternProperties": {"^.+$": _LIST},
        },
    ]
}
# `all`, or a list of shapes by the name of an input.
EnumeratedShapes = Annotated[
    str | dict[str, tuple[Shape, ...]], PlainValidator(_parse), WithJsonSchema(_SCHEMA)
]
