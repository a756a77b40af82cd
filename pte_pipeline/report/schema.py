"""Prints a JSON Schema: `python -m pte_pipeline.report.schema [report | events | VERB]`."""

import sys

from pipeline.features.schemas.record_schemas import main as main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
