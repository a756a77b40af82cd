"""References: does the export match its module in eager mode, or outputs recorded elsewhere?

record           runs an exporter's references, in a process that may die
recorder         the recorded calls, each from the state in which the exporter left its modules
generated_sets   the inputs of these calls besides examples
reference_state  that state, and how it is restored
random_calls     calls that make a reference return different values each time
training_mode    modules in training mode, which may do the same
own_program      references that only call the exported program
guarded          the process that records
recordings       recorded calls, as the store keeps them
golden           reads recorded outputs from a file as such calls
measuring        judges the methods of a package that have a reference
verdict          the comparison of an exported program with its references
recording_judge  the comparison of one sequence of calls
reference_form   outputs whose form differs from the exported program's
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
