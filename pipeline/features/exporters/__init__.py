"""Exporters: models whose source is a Python file that exports their methods when it runs.

export    an export action, from the exporter to an archive in the store
exporter  the functions that an exporter defines, and the calls of them
diagnose  `doit diagnose`: drafts of modules that can't be exported
reference_calls  calls of an exporter's references, for other features
handover  from the exporter's process to the one that writes the archive
neutral   the common environment of every exporter's process
quoted_lines  keeps the lines of libraries that stack traces quote
shared_members  stores the weights of several programs once in the archive
"""

from __future__ import annotations

from pipeline.moments import Command, Feature

DIAGNOSE = Command(
    "diagnose",
    "list everything in a model that torch.export rejects, with source lines",
    "<model | package> ...",
    {"json": "print one line of JSON instead (docs/reference/json.md)"},
    "The exporter runs once more, and torch.export.draft_export exports the programs that "
    "torch.export rejects. The command prints the resulting report: operators without fake "
    "kernels, branches and sizes that depend on values, and guards on sizes. The exit status is 1 "
    "if anything is rejected.",
    (("doit diagnose asr", "the model of models/asr.py"),),
    run="pipeline.features.exporters.diagnose:run",
    builds=True,
    record="pipeline.features.exporters.diagnose:DIAGNOSIS",
)
FEATURE = Feature(
    "exporters",
    "run exporters; without it, only archives of exported programs (.pt2) can be built",
    verbs=(DIAGNOSE,),
    perform_export={"export": "pipeline.features.exporters.export:export"},
    call_references="pipeline.features.exporters.reference_calls:call_references",
)
