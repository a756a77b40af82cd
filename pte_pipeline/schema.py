"""`python -m pte_pipeline.schema [FILE]` writes the JSON Schema of package configs for editors."""

import sys

from pte_pipeline.name_conflict import claim_pipeline

claim_pipeline()

from pipeline.features.schemas.editor_files import main as main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
