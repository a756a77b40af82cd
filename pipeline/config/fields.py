"""The types of a config's fields: accepted strings and numbers, and messages about all others."""

from __future__ import annotations

import math
import re
from decimal import Decimal
from typing import Annotated, Any, TypeVar

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Discriminator,
    Field,
    PlainValidator,
    Tag,
    WithJsonSchema,
)
from pydantic.fields import FieldInfo

from pipeline.backends.options import (
    MODULE_PATTERN,
    Distinct,
    Modules,
    distinct,
    rule,
)
from pipeline.backends.quantize_options import UNION_TAGS
from pipeline.moments import has_feature
from pipeline.program.constant_values import wrong_value
from pipeline.store.files import BUILD_FILES
from pipeline.store.names import METHOD_NAME, NAME_PATTERN, NAME_RULE
from pipeline.store.sizes import SIZE_PATTERN, UNITS, parse_size

WEIGHTS_FILE = "weights"  # the .ptd file for weights if no file is named
LONGEST_NAME = 128  # of a file's 255, minus a prefix and a suffix
_LONGEST_PATH = 1000  # of a file or module, including its folders
# `*` in OPERATORS_PATTERN, which matches one or several operators, stands for any characters.
PARAMETER_PATTERN = r"^[A-Za-z][A-Za-z0-9_]*$"
OPERATORS_PATTERN = r"^[A-Za-z_*][A-Za-z0-9_.*]*$"
SHARE_PATTERN = r"^[0-9]{1,9}(\.[0-9]{1,9})? ?%$"
DIGEST_PATTERN = r"^[0-9a-f]{64}$"
IDENTIFIER_PATTERN = r"^ET[0-9]{2}$"
RELEASE_PATTERN = r"^[0-9]{1,4}\.[0-9]{1,4}(\.[0-9]{1,4})?$"
LABEL_PATTERN = r"^[^\x00-\x1f\x7f]+$"
OPERATOR_PATTERN = (
    r"^[A-Za-z_][A-Za-z0-9_]*\.[A-Za-z_][A-Za-z0-9_]*\.[A-Za-z_][A-Za-z0-9_]*$"
)
# How a device is written in configs. A length in the pattern (`{1,100}`) would take pydantic 50 ms.
DEVICE_PATTERN = r"^[\w:.,=+@/-]+$"
# Names don't begin with `_`, which marks private names and Python's own; an exception is
# ExecuTorch's `_passes`.
_WORD = r"[A-Za-z][A-Za-z0-9_]*"
REFERENCE_PATTERN = rf"^(executorch(\.(_passes|{_WORD}))+|{_WORD}(\.{_WORD})*):{_WORD}$"
# Messages for strings that don't match a pattern.
RULES = {
    NAME_PATTERN: NAME_RULE,
    PARAMETER_PATTERN: "must be letters, digits and '_', and begin with a letter",
    OPERATOR_PATTERN: "must be an operator with its overload, such as aten.linear.default",
    OPERATORS_PATTERN: "must be an operator such as aten.add.Tensor, or a pattern such as aten.*",
    REFERENCE_PATTERN: "must be module:name, such as fusions:FuseGelu, without private names",
    IDENTIFIER_PATTERN: "must be the identifier of .pte files, such as ET12",
    RELEASE_PATTERN: 'must be a release in quotes, such as "1.4" or 1.4.1',
    DEVICE_PATTERN: "must be a device of validate.devices, such as native",
    DIGEST_PATTERN: "must be a BLAKE3 digest: 64 hexadecimal digits",
    LABEL_PATTERN: "must be a string, not empty, without control characters",
    MODULE_PATTERN: "must be a module's qualified name, such as decoder.layers.0",
}


class NeedsFeature(str):
    """Marks a config key, in its `Annotated` type, that has no effect without the named feature."""


SelectedModules = Annotated[Modules | None, NeedsFeature("module_selection")]
# Marks a config key, in its `Annotated` type, whose value is compared with a baseline.
NEEDS_BASELINE = "compared with a baseline"


def find_missing_feature(field: FieldInfo) -> str:
    """Return the name of the feature that a key needs and that isn't installed, or ""."""
    for mark in field.metadata:
        if isinstance(mark, NeedsFeature) and not has_feature(mark):
            return mark
    return ""


def wrong_package_name(name: object) -> str:
    """Return the rule that a package name breaks, or "" if it can name a folder of `build/`."""
    if not isinstance(name, str) or not re.fullmatch(NAME_PATTERN, name):
        return RULES[NAME_PATTERN]
    if len(name) > LONGEST_NAME:
        return f"must have at most {LONGEST_NAME} characters"
    if name in BUILD_FILES:
        return "must not be the name of a file that builds write to build/"
    return ""


def is_method(name: object) -> bool:
    """Return whether a name is a valid method name."""
    return isinstance(name, str) and METHOD_NAME.fullmatch(name) is not None


def _short(name: str) -> str:
    if len(name) > LONGEST_NAME:
        raise rule(f"must have at most {LONGEST_NAME} characters")
    return name


def parse_bytes(value: Any) -> Any:
    """Parse a size such as `40MB` to bytes. Raises PydanticCustomError if it isn't one."""
    size = parse_size(value) if isinstance(value, str) else value
    if not isinstance(size, int) or not 1 <= size < 2**63:
        units = ", ".join(UNITS)
        raise rule(f"must be a size such as 40MB; units: {units}")
    return size


def _portion(value: Any) -> Any:
    if isinstance(value, str) and re.fullmatch(SHARE_PATTERN, value):
        # As a decimal, since 0.7 / 100 is not 0.007 in floating point.
        value = float(Decimal(value.rstrip("% ")) / 100)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 <= value < math.inf:
        raise rule("must be a share such as 0.02 or 2%")
    return float(value)


def _by_file(value: Any) -> Any:
    """Return patterns by file name; a single file's name may be omitted."""
    if isinstance(value, bool):
        value = ["*"] if value else {}
    if isinstance(value, list | tuple):
        value = {WEIGHTS_FILE: value}
    if not isinstance(value, dict):
        raise rule(
            "must be true, a list of modules and patterns, or such lists by file name"
        )
    return value


def _power_of_two(value: int) -> int:
    if value < 1 or value & (value - 1):
        raise rule("must be a power of two")
    return value


ALGORITHMS = ("greedy", "greedy_without_overlap", "naive")  # of memory planning


def _algorithms(value: Any) -> Any:
    names = value if isinstance(value, list | tuple) else [value]
    if not names or not all(map(_is_algorithm, names)):
        raise rule(
            f"must be {', '.join(ALGORITHMS)} or module:name, or a list of these"
        )
    if {*names} - {*ALGORITHMS} and not has_feature("passes"):
        raise rule(
            f"must be {', '.join(ALGORITHMS)}, or a list of these: this installation has "
            'no feature "passes"'
        )
    return distinct(tuple(names))


def _is_algorithm(name: Any) -> bool:
    return isinstance(name, str) and (name in ALGORITHMS or is_reference(name))


def is_reference(name: str) -> bool:
    """Return whether a string has the form module:name."""
    return (
        len(name) <= _LONGEST_PATH and re.fullmatch(REFERENCE_PATTERN, name) is not None
    )


def _short_path(path: str) -> str:
    if len(path) > _LONGEST_PATH:
        raise rule(f"must have at most {_LONGEST_PATH} characters")
    return path


def _constant(value: Any) -> Any:
    fault = wrong_value(value)
    if fault:
        raise rule(fault)
    return value


def check_data(value: Any) -> Any:
    """Check that data consists of JSON values and secrets, and return it.

    Raises PydanticCustomError for other data.
    """
    members = value
    if isinstance(value, dict):
        members = value.values()
        if not all(isinstance(key, str) for key in value):
            raise rule("must have only string keys, at every level")
    if isinstance(value, float) and not math.isfinite(value):
        raise rule("must contain finite numbers only")
    for member in members if isinstance(value, dict | list) else ():
        check_data(member)
    return value


_PATTERNS = {
    "type": "array",
    "items": {"type": "string", "pattern": LABEL_PATTERN},
    "minItems": 1,
    "uniqueItems": True,
}
_LEAF: list[dict[str, Any]] = [
    {"type": "boolean"},
    {"type": "number"},
    {"type": "string"},
]
_NESTED: dict[str, Any] = {"anyOf": [*_LEAF, {"type": "array"}]}
Name = Annotated[str, Field(pattern=NAME_PATTERN), AfterValidator(_short)]
MethodName = Name
DeviceName = Annotated[str, Field(pattern=DEVICE_PATTERN), AfterValidator(_short)]
_Value = TypeVar("_Value")
# One value for all devices, or one for each device. Errors are about one of the two.
OrByDevice = Annotated[
    Annotated[_Value, Tag(UNION_TAGS[0])]
    | Annotated[dict[DeviceName, _Value], Tag(UNION_TAGS[1])],
    Discriminator(lambda value: UNION_TAGS[isinstance(value, dict)]),
]
Label = Annotated[str, Field(pattern=LABEL_PATTERN)]
Library = Annotated[Label, AfterValidator(_short_path)]
Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Tolerance = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Portion = Annotated[
    float,
    BeforeValidator(_portion),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "number", "minimum": 0},
                {"type": "string", "pattern": SHARE_PATTERN},
            ]
        }
    ),
]
ParameterName = Annotated[str, Field(pattern=PARAMETER_PATTERN), AfterValidator(_short)]
Operator = Annotated[str, Field(pattern=OPERATOR_PATTERN)]
PowerOfTwo = Annotated[
    int, AfterValidator(_power_of_two), WithJsonSchema({"type": "integer"})
]
Operators = Annotated[
    tuple[Annotated[str, Field(pattern=OPERATORS_PATTERN)], ...], Field(strict=False)
]
Patterns = Distinct[Label]
Weights = Annotated[
    dict[Name, Patterns],
    BeforeValidator(_by_file),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "boolean"},
                _PATTERNS,
                {
                    "type": "object",
                    "patternProperties": {NAME_PATTERN: _PATTERNS},
                    "additionalProperties": False,
                },
            ]
        }
    ),
]
Constant = Annotated[
    bool | int | float | str | list[Any],
    PlainValidator(_constant),
    WithJsonSchema({"anyOf": [*_LEAF, {"type": "array", "items": _NESTED}]}),
]
_ALGORITHM = {
    "anyOf": [{"enum": [*ALGORITHMS]}, {"type": "string", "pattern": REFERENCE_PATTERN}]
}
Algorithms = Annotated[
    tuple[str, ...],
    BeforeValidator(_algorithms),
    WithJsonSchema(
        {
            "anyOf": [
                *_ALGORITHM["anyOf"],
                {"type": "array", "items": _ALGORITHM, "minItems": 1},
            ]
        }
    ),
]
TargetNames = Annotated[
    tuple[Name, ...],
    Field(strict=False, json_schema_extra={"uniqueItems": True}),
    AfterValidator(distinct),
]
Size = Annotated[
    int,
    BeforeValidator(parse_bytes),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "integer", "minimum": 1},
                {"type": "string", "pattern": SIZE_PATTERN},
            ]
        }
    ),
]
