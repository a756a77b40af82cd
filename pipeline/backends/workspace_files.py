"""Options whose values name files of the workspace: input sets, or a compiler's config.

Such an option is annotated with `WorkspaceFiles`. The content of the file is then an input, and its
path isn't: the plan looks for the file and keys have its digest, while the resolved config leaves
the path out. Code that uses the options gets absolute paths.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args

from pydantic import BaseModel, Field, GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, core_schema

from pipeline.backends.options import rule
from pipeline.store.errors import shown
from pipeline.store.files import LINK_OUT, inside

Misfits = Callable[[Any, Path], Iterator[tuple[str, str, str]]]
_Options = TypeVar("_Options", bound=BaseModel)
_OUTSIDE = "for one outside make a link, and list the folder that it leads to in the setting `data`"


@dataclass(frozen=True)
class WorkspaceFiles:
    """Annotates an option of type `str` or `tuple[str, ...]`, or one of these or None.

    Attributes:
        suffixes: the allowed suffixes of such files.
        many: whether the value is a tuple; in YAML, a name or a list of names.
        brought: values that name a file that a tool provides instead of a workspace file.
        misfits: given the options and the absolute path of an existing file, yields the option, the
            fault, and the known values.
    """

    suffixes: tuple[str, ...]
    many: bool = False
    brought: tuple[str, ...] = ()
    misfits: Misfits = lambda options, path: iter(())

    def named_by(self, value: Any) -> tuple[str, ...]:
        """Return the workspace files that a value of the option names."""
        paths = (value,) if isinstance(value, str) else value or ()
        return tuple(path for path in paths if path not in self.brought)

    def located(self, value: Any, root: Path) -> Any:
        """Return the value, with the absolute path of each file."""
        if isinstance(value, str):
            return str(root / value) if self.named_by(value) else value
        return value and tuple(self.located(path, root) for path in value)

    def _validate(self, value: Any, validate: Callable[[Any], Any]) -> Any:
        if self.many and isinstance(value, str | list):
            value = (value,) if isinstance(value, str) else tuple(value)
        value = validate(value)
        for path in self.named_by(value):
            parts = path.split("/")
            if "\\" in path or {"", ".", ".."} & set(parts):
                noun = "files by their path" if self.many else "a file by its path"
                is_outside = path.startswith("/") or ".." in parts
                remark = f"; {_OUTSIDE}" if is_outside else ""
                raise rule(f"must be {noun} in the workspace{remark}")
            if not path.endswith(self.suffixes):
                choices = [f"end in {', '.join(self.suffixes)}"]
                choices += [f"be {value}" for value in self.brought]
                unlike = f", unlike '{path}'" if self.many else ""
                raise rule("must " + " or ".join(choices) + unlike)
        return value

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        return core_schema.no_info_wrap_validator_function(
            self._validate,
            handler(source),
            serialization=core_schema.plain_serializer_function_ser_schema(
                lambda value: None if self.named_by(value) else value
            ),
        )

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        ends = "|".join(re.escape(suffix.removeprefix(".")) for suffix in self.suffixes)
        path_schema: JsonSchemaValue = {
            "type": "string",
            "pattern": rf"^[^/\\].*\.({ends})$",
        }
        if not self.many:
            return path_schema
        list_schema = {"type": "array", "items": path_schema, "minItems": 1}
        constants: list[JsonSchemaValue] = [{"const": word} for word in self.brought]
        return {"anyOf": [*constants, path_schema, list_schema]}


GENERATED = "generated"  # selects random inputs instead of files
# Files of input sets, in the formats of pipeline/program/input_files.py.
_INPUT_SETS = (".npz", ".pt", ".safetensors")
InputFiles = Annotated[
    tuple[str, ...], Field(min_length=1), WorkspaceFiles(_INPUT_SETS, many=True)
]
CalibrationFiles = Annotated[
    tuple[str, ...],
    Field(min_length=1),
    WorkspaceFiles(_INPUT_SETS, many=True, brought=(GENERATED,)),
]


def _marked(options: BaseModel) -> Iterator[tuple[str, WorkspaceFiles]]:
    for name, field in type(options).model_fields.items():
        annotations = list(field.metadata)
        # pydantic takes only the outermost annotations off a type; those inside `X | None` remain
        # in it.
        for member in get_args(field.annotation):
            annotations += get_args(member)
        for annotation in annotations:
            if isinstance(annotation, WorkspaceFiles):
                yield name, annotation


def named_files(options: BaseModel) -> dict[str, tuple[str, ...]]:
    """Return the workspace files that options name, by option."""
    named = {}
    for name, mark in _marked(options):
        paths = mark.named_by(getattr(options, name))
        if paths:
            named[name] = paths
    return named


def find_misfits(
    options: BaseModel, root: Path, data: Iterable[Path] = ()
) -> Iterator[tuple[str, str, str]]:
    """Yield the faults of the files below `root` that options name.

    Each has the option, the fault, and the known values or a remedy. Links may lead to the folders
    in `data` outside the workspace.
    """
    for name, mark in _marked(options):
        for path in mark.named_by(getattr(options, name)):
            try:
                yield from mark.misfits(options, inside(root / path, (root, *data)))
            except FileNotFoundError:
                yield name, f"no file {shown(path)} in the workspace", ""
            except OSError as error:
                hint = _OUTSIDE if error.strerror == LINK_OUT else ""
                yield name, f"file {shown(path)} cannot be read: {error.strerror}", hint


def located(options: _Options, root: Path) -> _Options:
    """Return the same options, with the absolute path of each file below `root` that they name."""
    values = {
        name: mark.located(getattr(options, name), root)
        for name, mark in _marked(options)
    }
    return options.model_copy(update=values) if values else options
