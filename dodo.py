"""The doit tasks of this workspace: `doit list` names them."""

from pte_pipeline.tasks import *
