"""References: is the export itself what its module gives in eager mode, or was recorded elsewhere?

record           what an exporter's references give, in a process that may die of it
recorder         the recorded calls, each from the state in which the exporter left its modules
reference_state  that state, and how it is restored
random_calls     calls that make a reference give other values each time
guarded          the process that records
recordings       recorded calls, as the store keeps them
golden           recorded outputs of a file, read as such calls
measuring        which methods of a package have a reference
verdict          the comparison of an exported program with its references
recording_judge  the comparison of one sequence of calls
reference_form   outputs of other forms than the exported program's
"""

from __future__ import annotations

from pipeline.moments import Feature

FEATURE = Feature(
    "references",
    "compare exported programs with their modules in eager mode, and with files in golden/",
    record_references="pipeline.features.references.record:record_references",
    keep_state="pipeline.features.references.reference_state:keep_state",
    measuring="pipeline.features.references.measuring:ReferenceMeasuring",
)
