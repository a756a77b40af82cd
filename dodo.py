"""The doit tasks of this workspace: `doit list` names them."""

from pipeline.tasks import *
