"""transformers: model sources around its models, their lowering, and folders for its own runner.

`pte_pipeline.hugging_face` makes the sources public.

hugging_face       classes around transformers' exportable modules
exported           any model, through transformers' exporters; task_classes, revisions
sample_inputs      inputs for a source that gives none; plain_inputs, mixed_inputs
model_download     downloads a hub's model before its exporter runs; hub
moved_examples     a second example of decoders
recorded           the record that such an export leaves in its programs
patched_lowering   transformers' patches, in force while such a program is lowered
source_file        `models/<model>.yaml`
pretrained_folder  `doit pretrained`
"""

from __future__ import annotations

from pipeline.moments import Command, Feature

PRETRAINED = Command(
    "pretrained",
    "write packages as folders for transformers' ExportedModel",
    "[package ...]",
    more="The packages must be current, and their models exported by transformers' exporters. "
    "The folder is build/<package>/pretrained; nothing is compiled again.",
    examples=(("doit pretrained smol", "write build/smol/pretrained/export.json"),),
    run="pipeline.features.transformers.pretrained_folder:run",
)
FEATURE = Feature(
    "transformers",
    "export transformers models, lower them as transformers does, and write folders that "
    "transformers can run",
    verbs=(PRETRAINED,),
    public=(
        "pipeline.features.transformers.exported",
        "pipeline.features.transformers.hugging_face",
        "pipeline.features.transformers.source_file",
    ),
    fetch_sources="pipeline.features.transformers.model_download:fetch_source",
    more_examples="pipeline.features.transformers.moved_examples:move_example",
    outlines={"hub-files": "pipeline.features.transformers.outlines:HUB_FILES"},
    compile_facts="pipeline.features.transformers.patched_lowering:PatchedLowering",
)
