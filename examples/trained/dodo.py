"""The doit tasks of the trained models, with the extra `gallery` and the wheels of `wheels.txt`."""

from pte_pipeline.tasks import *
