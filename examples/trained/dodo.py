"""The doit tasks of the trained models, with the extra `gallery` and the wheels of `wheels.txt`."""

from pipeline.tasks import *
