"""Randomness: methods declared as random, judged by how their outputs are distributed."""

from __future__ import annotations

from pipeline.moments import Feature

FEATURE = Feature(
    "randomness",
    "judge methods that sample (`random: true`) by the distribution of outputs over repeated calls",
    judge_random="pipeline.features.randomness.judge:judge_random",
)
