"""Randomness: finds sources that rarely draw numbers that matter, and judges methods declared as
random by how their outputs are distributed.
"""

from __future__ import annotations

from pipeline.moments import Feature

FEATURE = Feature(
    "randomness",
    "judge methods that sample (`random: true`) by the distribution of outputs over repeated "
    "calls, and detect sources whose runs may agree only by chance, since few draws matter",
    describe_unwritten="pipeline.features.randomness.draws:describe_rare_draws",
    judge_random="pipeline.features.randomness.judge:judge_random",
)
