"""References: is the export itself what its module gives in eager mode, or was recorded elsewhere?

measuring  which methods have a reference, and where it is
golden     recorded outputs of a file, read as calls of a method
verdict    the comparison of an exported program with its references
"""

from __future__ import annotations

from pipeline.moments import Feature

FEATURE = Feature(
    "references",
    "compare exported programs with their modules in eager mode, and with files in golden/",
    measuring="pipeline.features.references.measuring:ReferenceMeasuring",
)
