"""The doit tasks, under a former name that dodo files may still use; it is now
`pte_pipeline.tasks`."""

from pipeline.cli.tasks import *
from pipeline.cli.tasks import __all__ as __all__
