"""Publish: packages with a model card at an fsspec address, and an index that apps read.

release  the files of a package, with their digests and verdicts
card     its model card
upload   sends a release: each file once, never over other content
index    packages.json, which is written last
fetch    reads the index, downloads a package and checks it
"""

from __future__ import annotations

from pipeline.moments import Command, Feature

PUBLISH = Command(
    "publish",
    "upload validated packages with model cards, and list them in an index",
    "[package ...]",
    {
        "to ADDRESS": "any fsspec address, such as s3://bucket/models, file:///srv/models or "
        "hf://org/model",
        "dry-run": "print what would be uploaded, without uploading",
    },
    "A package must be built and validated as currently configured, and must have passed; "
    "`--allow not-judged` also accepts packages that were not judged. Files go to "
    "<address>/<package>/<digest>/ and never replace other content; after the upload, "
    "<address>/packages.json lists them.",
    (
        ("doit publish vision --to s3://bucket/models", "one package"),
        (
            "doit publish --to file:///srv/models --dry-run",
            "list what would be uploaded for all packages",
        ),
    ),
    run="pipeline.features.publish.verb:run",
)
FETCH = Command(
    "fetch",
    "download the best published package for a target, and check it",
    "address target [model] [folder]",
    more=(
        "Files go to <folder>/<package>/<digest>/, by default below the current folder; files "
        "that already exist are not downloaded. The command prints the path of the .pte."
    ),
    examples=(
        ("doit fetch s3://bucket/models android-arm64", "the index has one model"),
        (
            "doit fetch https://models.example/ ios vision assets",
            "one of several models, into assets/",
        ),
    ),
    run="pipeline.features.publish.fetch:run",
    anywhere=True,
)
FEATURE = Feature(
    "publish",
    "publish packages with model cards and an index for apps, and fetch them through the index",
    verbs=(PUBLISH, FETCH),
    config={"package": "pipeline.features.publish.config:add_fields"},
)
