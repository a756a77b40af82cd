"""The JSON Schema of `targets/*.yaml`, for editors.

It is made from the model that parses a target, with the names that the model accepts.
"""

from __future__ import annotations

from typing import Any

from pydantic.json_schema import GenerateJsonSchema

from pipeline.backends import BACKENDS
from pipeline.backends.options import add_descriptions
from pipeline.features.contracts.linking import kernel_libraries
from pipeline.features.contracts.targets import KERNEL_PATTERN, PARTS, TargetFile
from pipeline.program.scalar_types import SCALAR_TYPES
from pipeline.store.sizes import SIZE_PATTERN

_ARENA = "^[1-9][0-9]{0,2}$"


def target_schema(generator: type[GenerateJsonSchema]) -> dict[str, Any]:
    """Return a schema of draft 2020-12; the order of its keys is fixed.

    Args:
        generator: the class that describes the types of keys.
    """
    schema = TargetFile.model_json_schema(schema_generator=generator)
    keys = schema["properties"]
    dtype = {"enum": SCALAR_TYPES.split()}
    dtypes = {"type": "array", "items": dtype, "minItems": 1, "uniqueItems": True}
    keys["kernels"]["items"] = {
        "enum": [name for name in kernel_libraries() if name != "prim"]
    }
    keys["dtypes"]["items"] = dtype
    ids = {backend.backend_id for backend in BACKENDS.values()}
    keys["backends"]["items"] = {"enum": [*BACKENDS, *sorted(ids - BACKENDS.keys())]}
    name = f"^{KERNEL_PATTERN}$"
    keys["operators"]["items"] = {
        "anyOf": [
            {"type": "string", "pattern": name},
            {**_mapping({name: dtypes}), "maxProperties": 1},
        ]
    }
    sizes = [
        {"type": "integer", "minimum": 1},
        {"type": "string", "pattern": SIZE_PATTERN},
    ]
    power = {"enum": [1 << bits for bits in range(31)]}
    keys["memory"] = {"anyOf": [*sizes, _mapping({_ARENA: {"anyOf": sizes}})]}
    keys["alignment"] = {"anyOf": [power, _mapping({f"^({'|'.join(PARTS)})$": power})]}
    add_descriptions(TargetFile, keys)
    return {
        "$schema": generator.schema_dialect,
        **schema,
        "description": "The runtime of a device.",
    }


def _mapping(members: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a mapping with at least one of these members."""
    return {
        "type": "object",
        "patternProperties": members,
        "additionalProperties": False,
        "minProperties": 1,
    }
