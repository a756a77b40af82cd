"""The doit tasks of the trained models; they need the extra `gallery` and the wheels of
`wheels.txt`."""

from pte_pipeline.tasks import *
