"""`python -m pte_pipeline.schema [FILE]` writes the JSON Schema of package configs, for editors.

By default it goes to partition_configs/schema.json in the current folder, a workspace. The schemas
of other files are written next to those files if their folder exists, such as targets/schema.json
for targets.
"""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path

from pipeline.features.schemas.config_schema import json_schema
from pipeline.features.schemas.schema_generator import SchemaGenerator
from pipeline.moments import find_functions, load

DEFAULT = Path("partition_configs", "schema.json")


def main(words: list[str]) -> int:
    """Write the schemas, print their paths, and return the exit status."""
    if len(words) > 1 or any(word.startswith("-") for word in words):
        print(
            f"usage: python -m pte_pipeline.schema [FILE]; without FILE: {DEFAULT}",
            file=sys.stderr,
        )
        return 2
    schemas = {Path(*words) if words else DEFAULT: json_schema}
    more_schemas = {} if words else find_functions("schemas")
    for name, reference in more_schemas.items():
        if Path(name).parent.is_dir():
            schemas[Path(name)] = partial(load(reference), SchemaGenerator)
    for path, make in schemas.items():
        try:
            path.write_text(json.dumps(make(), indent=2) + "\n", encoding="utf-8")
        except OSError as error:
            remedy = "run it in a workspace, or name a file in an existing folder"
            print(f"{path}: {error.strerror}; {remedy}", file=sys.stderr)
            return 1
        print(f"wrote {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
