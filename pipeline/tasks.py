"""The doit tasks under a former name of `pte_pipeline.tasks`, which old dodo files may use."""

from pipeline.cli.tasks import *
from pipeline.cli.tasks import __all__ as __all__
