"""The doit tasks, by a name that a dodo file may still use: it is `pte_pipeline.tasks` now."""

from pipeline.cli.tasks import *
from pipeline.cli.tasks import __all__ as __all__
