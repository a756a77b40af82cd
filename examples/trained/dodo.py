"""The doit tasks of the trained models; they need the extra `gallery` and `wheels.txt`'s wheels."""

from pte_pipeline.tasks import *
