"""The doit tasks, under a former name for `pte_pipeline.tasks` that dodo files may still use."""

from pipeline.cli.tasks import *
from pipeline.cli.tasks import __all__ as __all__
