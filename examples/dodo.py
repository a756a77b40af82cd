"""The doit tasks of the gallery: `doit validate:llama`, say, with the extra `gallery` installed."""

from pte_pipeline.tasks import *
