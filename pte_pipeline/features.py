"""The names that declare a feature of another distribution: docs/guides/writing-a-feature.md."""

from pte_pipeline.name_conflict import claim_pipeline

claim_pipeline(tell=True)

from pipeline.moments import Command as Command
from pipeline.moments import Feature as Feature
from pipeline.moments import Setting as Setting
