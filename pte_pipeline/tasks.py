"""The doit tasks, for a `dodo.py` to import: `from pte_pipeline.tasks import *`."""

from pte_pipeline.name_conflict import claim_pipeline

claim_pipeline(tell=True)

from pipeline.cli.tasks import *
from pipeline.cli.tasks import __all__ as __all__
