"""Tuning: finds the best alternatives for a package's config.

config     the section `tune` of a package config
space      the alternatives of a space, and the config of each combination
planning   the mistakes in a space, with their lines
screening  the figures of all combinations, predicted from quantized programs
prediction the figures predicted from one quantized program
estimates  predictions, corrected by trials
guided     which combinations are tried if their figures are predicted
sampler    which are tried otherwise: all, or those that Optuna's sampler asks for
trials     trials as packages of a separate workspace, lowered and validated by doit
figures    the figures of a trial, by name
ranking    limits, the Pareto front, and the best trial
joint      one trial of each of several packages, within a limit on their sum
sharing    the weights that packages of a family share
edit       puts values into a config file, and leaves its other lines as they are
search     the trials of a package, batch by batch
table      the result as a table
page       the result as a page and as JSON
verb       `doit tune`
"""

from __future__ import annotations

from pipeline.moments import Command, Feature

TUNE = Command(
    "tune",
    "build variants of packages, and find the best by size, accuracy or speed",
    "[package ...]",
    {
        "trials NUMBER": "the number of variants to try, instead of `tune.trials`",
        "all": "try all variants, not only those that predictions select",
        "write TRIAL": "write a trial to the config: its number, or `best`",
        "max-size SIZE": "choose one trial of each package so that their total size is at most "
        "SIZE",
        "max-memory SIZE": "the same for total memory (planned memory, or the peak on a device)",
        "target LABEL": "tune the packages of this target; those without a `tune` section are "
        "included as built",
    },
    "The section `tune` of a config names the alternatives. Variants are built in build/.tune, "
    "with the same workers and store as packages. An interrupted run continues where it stopped, "
    "and a second run builds nothing. The results are in build/tune-<package>.html. "
    "The exit status is 1 if no trial of a package meets all limits.",
    (
        ("doit tune vision", "print a table, and write a page with the trade-offs"),
        ("doit tune vision --write best", "write the best variant to its config"),
        ("doit tune vision asr --max-size 10MB", "both together within 10 MB"),
        ("doit tune --target phone --max-memory 4MB", "all packages of a target"),
    ),
    run="pipeline.features.tuning.verb:run",
    builds=True,
)
FEATURE = Feature(
    "tuning",
    "try alternative settings, and write the best ones into the config",
    verbs=(TUNE,),
    config={"package": "pipeline.features.tuning.config:add_fields"},
    summarize="pipeline.features.tuning.config:summarize",
    planning="pipeline.features.tuning.planning:TunePlanning",
    outlines={"tune-prediction": "pipeline.features.tuning.screening:PREDICTION"},
)
