"""The JSON Schema of `targets/*.yaml`, for editors: `python -m
pipeline.features.contracts.target_schema` prints it.

Made from the model that parses a target, with the names that it takes.
"""

from __future__ import annotations

import json
from typing import Any

from pipeline.backends import BACKENDS
from pipeline.backends.options import add_descriptions
from pipeline.config.schema_generator import DIALECT, SchemaGenerator
from pipeline.features.contracts.linking import kernel_libraries
from pipeline.features.contracts.targets import KERNEL_PATTERN, PARTS, TargetFile
from pipeline.program.scalar_types import SCALAR_TYPES
from pipeline.store.sizes import SIZE_PATTERN

_ARENA = "^[1-9][0-9]{0,2}$"


def target_schema() -> dict[str, Any]:
    """Return a schema of draft 2020-12; the order of its keys is fixed."""
    schema = TargetFile.model_json_schema(schema_generator=SchemaGenerator)
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
    return {"$schema": DIALECT, **schema, "description": "The runtime of a device."}


def _mapping(members: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a mapping with at least one of such members."""
    return {
        "type": "object",
        "patternProperties": members,
        "additionalProperties": False,
        "minProperties": 1,
    }


if __name__ == "__main__":
    print(json.dumps(target_schema(), indent=2))
