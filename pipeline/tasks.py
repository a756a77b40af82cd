"""The doit tasks: a `dodo.py` says `from pipeline.tasks import *`."""

from pipeline.cli.tasks import *
from pipeline.cli.tasks import __all__ as __all__
