"""`python -m pipeline.schema [FILE]` writes the JSON Schema of package configs, for editors.

By default to partition_configs/schema.json of the workspace that the current folder is."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from pipeline.config.schema import json_schema

DEFAULT = Path("partition_configs", "schema.json")


def main(words: list[str]) -> int:
    """Write the schema, say where, and return the exit status."""
    if len(words) > 1 or any(word.startswith("-") for word in words):
        print(f"usage: python -m pipeline.schema [FILE]; without FILE: {DEFAULT}", file=sys.stderr)
        return 2
    path = Path(*words) if words else DEFAULT
    try:
        path.write_text(json.dumps(json_schema(), indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        remedy = "run it in a workspace, or name a file in a folder that is there"
        print(f"{path}: {error.strerror}; {remedy}", file=sys.stderr)
        return 1
    print(f"wrote {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
