"""Users are told of a wrong quantization, and no correct one fails."""

import pytest

from tests.mutations.quantization import SETTINGS, judge
from tests.mutations.trained import TASKS
from tests.support.matrix import in_tiers

TOLD = (
    ("pair", "fold_of_a_shared_convolution"),
    ("mlp", "observed_other_data"),
    ("mlp", "zero_points_swapped"),
    ("mlp", "weight_scale_halved"),
)


@pytest.mark.parametrize("wrong", in_tiers(TOLD, TOLD[1:3]), ids=" ".join)
def test_a_user_is_told_of_a_wrong_quantization(wrong):
    network, damage = wrong
    record = judge(TASKS[network], damage)
    told = dict(zip(SETTINGS, record.outcomes, strict=True))
    assert record.lowering == ()  # only the comparison with the float program reveals it
    assert told["with limits"] == "failed"
    assert told["without limits"] in ("failed", "not judged")


@pytest.mark.slow
@pytest.mark.parametrize("network", ["pair", "mlp"])
def test_a_right_quantization_does_not_fail(network):
    assert TASKS[network].accuracy() > 0.85  # as trained
    record = judge(TASKS[network])
    told = dict(zip(SETTINGS, record.outcomes, strict=True))
    assert told["without limits"] != "failed", record.sentences[0]
    assert told["with limits"] == "passed", record.sentences[1]
