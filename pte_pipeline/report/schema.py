"""`python -m pte_pipeline.report.schema [report | events]` prints the JSON Schema of records."""

import sys

from pipeline.features.schemas.record_schemas import main as main

if __name__ == "__main__":
    main(sys.argv[1:])
