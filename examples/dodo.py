"""The doit tasks of the gallery, such as `doit validate:llama`; they need the extra `gallery`."""

from pte_pipeline.tasks import *
