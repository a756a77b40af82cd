"""The doit tasks of this workspace, which `doit list` lists."""

from pte_pipeline.tasks import *
