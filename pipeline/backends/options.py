"""The base class of all options, a strict frozen model, and types of values that options share.

Imports torch only to look up operators.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import pairwise
from operator import attrgetter
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    ValidationInfo,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from pipeline.backends.families import read_tables
from pipeline.store.errors import PipelineError, did_you_mean

if TYPE_CHECKING:
    from executorch.exir.dialects.edge._ops import EdgeOpOverload


class Options(BaseModel):
    """A part of a config. The text below each field describes that option."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        defer_build=True,  # most belong to backends that a config doesn't name
    )

    # A plain text in place of the mapping is the value of this key.
    shorthand: ClassVar[str] = ""

    def resolved(self) -> dict[str, Any]:
        """Return the options with all defaults filled in, as plain JSON values, for keys."""
        return self.model_dump(mode="json", by_alias=True)

    @classmethod
    def __get_pydantic_core_schema__(
        cls, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        """Let the context of a validation read the YAML spelling (`pipeline.config.reader`)."""
        schema = handler(source)
        model = handler.resolve_ref_schema(schema)
        # Already wrapped here, for another use of the class.
        if model["type"] == "function-wrap":
            return schema

        def read(data: Any, validate: Any, info: ValidationInfo) -> Any:
            return info.context(cls, data, validate) if info.context else validate(data)

        # The reference moves to the wrapper, since two schemas can't have the same one.
        bare: Any = {key: value for key, value in model.items() if key != "ref"}
        return core_schema.with_info_wrap_validator_function(
            read, bare, ref=model["ref"]
        )

    @classmethod
    def __get_pydantic_json_schema__(
        cls, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        json_schema = handler(schema)
        add_descriptions(
            cls, handler.resolve_ref_schema(json_schema).get("properties", {})
        )
        return json_schema


class NoOptions(Options):
    """The options of a backend that takes none."""


_EXAMPLE = "\n    Example:"  # introduces the value that the reference shows, as YAML


def add_descriptions(model: type[BaseModel], properties: Mapping[str, Any]) -> None:
    """Add field descriptions, each as one line, and examples to a model's JSON schema."""
    import yaml  # takes 17 ms, and a no-op run doesn't need it

    for name, field in model.model_fields.items():
        text = field.description or read_descriptions(model).get(name)
        json_schema = properties.get(field.alias or name)
        if text and json_schema is not None:
            description, _, example = text.partition(_EXAMPLE)
            json_schema["description"] = " ".join(description.split())
            if example:
                json_schema["examples"] = [yaml.safe_load(example)]


@cache
def read_descriptions(model: type[BaseModel]) -> Mapping[str, str]:
    """Return the docstrings below the fields of a model and its bases.

    pydantic would read them from the source at each import of models, which costs every process a
    tenth of a second.
    """
    descriptions: dict[str, str] = {}
    for base in reversed(model.__mro__):
        if issubclass(base, Options):
            descriptions.update(_own_descriptions(base))
    return descriptions


def _own_descriptions(model: type) -> Iterator[tuple[str, str]]:
    try:
        (tree,) = ast.parse(textwrap.dedent(inspect.getsource(model))).body
    except OSError:
        return  # a model without source
    assert isinstance(tree, ast.ClassDef)
    for field, text in pairwise(tree.body):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
            match text:
                case ast.Expr(ast.Constant(str(description))):
                    yield field.target.id, description


def rule(mistake: str) -> PydanticCustomError:
    """Return the error for a value that a rule of this package refuses."""
    return PydanticCustomError("rule", mistake)  # type: ignore[arg-type]


def distinct(names: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the names. Raises PydanticCustomError if they contain a duplicate."""
    if len(set(names)) < len(names):
        raise rule("must not contain duplicates")
    return names


# Upstream's names that options accept, by key; tests compare them with the installed ones.
NAMES: Mapping[str, Sequence[str]] = MappingProxyType(read_tables("names.toml"))


class OneOf:
    """Annotates a string that must be one of the names under these keys."""

    def __init__(self, *keys: str) -> None:
        self.names: list[str] = []
        for key in keys:
            self.names += NAMES[key]

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        return core_schema.literal_schema(self.names)


_T = TypeVar("_T")
# A list in YAML, a tuple here: not empty and without duplicates.
Distinct = Annotated[
    tuple[_T, ...],
    Field(strict=False, min_length=1, json_schema_extra={"uniqueItems": True}),
    AfterValidator(distinct),
]


MODULE_PATTERN = r"^[^\s.]+(\.[^\s.]+)*$"
ModuleName = Annotated[str, Field(pattern=MODULE_PATTERN)]
Modules = Annotated[
    Distinct[Annotated[str, Field(min_length=1)]],
    Field(
        description=(
            "Delegate only these sub-modules, by their qualified names such as decoder.layers.0; "
            "by default everything. '!head' excludes one. For a module that is called several "
            "times, name each call, such as shared@0, or all calls as shared@*."
        )
    ),
]
# The lower and upper bounds of a signed 8-bit range that includes zero.
Least = Annotated[int, Field(ge=-128, le=-1)]
Greatest = Annotated[int, Field(ge=1, le=127)]


def _check_operator(name: str) -> str:
    parts = name.split(".")
    if len(parts) != 3 or not all(part.isidentifier() for part in parts):
        raise rule("must be an operator with its overload: aten.add.Tensor")
    return name


OperatorName = Annotated[
    str,
    AfterValidator(_check_operator),
    Field(json_schema_extra={"pattern": r"^[A-Za-z_]\w*\.[A-Za-z_]\w*\.[A-Za-z_]\w*$"}),
]


def edge_operators(
    names: Iterable[str], option: str, delegated: Iterable[str] = ()
) -> list[EdgeOpOverload]:
    """Return the edge dialect's operators with these names.

    Raises:
        PipelineError: some are not installed; the message suggests the nearest name of `delegated`.
    """
    from executorch.exir.dialects._ops import ops

    operators, unknown = [], []
    for name in names:
        try:
            operators.append(attrgetter(name)(ops.edge))
        except AttributeError:
            unknown.append(name)
    if unknown:
        suggestions = sorted(delegated)
        hint = f"; {did_you_mean(unknown[0], suggestions)}" if suggestions else ""
        raise PipelineError(
            f"{option}: no operator {', '.join(unknown)} is installed{hint}"
        )
    return operators
