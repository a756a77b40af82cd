"""Values are inserted into config files, whose other lines stay unchanged."""

import pytest

from pipeline.features.tuning.edit import write_choice
from pipeline.features.tuning.trials import Trial
from pipeline.store.errors import PipelineError
from tests.features.tuning.spaces import CONFIG, space_of, write_config


def trial_of(choice):
    return Trial(1, choice, "pair-0123456789", {}, {}, (), ())


def test_a_trial_is_written_with_comments_kept(tmp_path):
    path = write_config(tmp_path)
    before = path.read_text()
    assert write_choice(space_of(path), trial_of((1, 1))) == (
        "partition_configs/pair.yaml: trial 1 is written"
    )
    quantize = "    quantize: {quantizer: xnnpack, per_channel: true}\n"
    expected = before.replace("[xnnpack]  # for all", "[]  # for all")
    expected = expected.replace(
        "    partitioners: [xnnpack]\n", f"    partitioners: [xnnpack]\n{quantize}"
    )
    assert path.read_text() == expected
    write_choice(space_of(path), trial_of((0, 0)))
    assert path.read_text() == before


def test_an_empty_alternative_is_written_out_where_the_defaults_have_a_value(tmp_path):
    config = CONFIG.replace("defaults:\n", "defaults:\n  quantize: {quantizer: xnnpack}\n")
    path = write_config(tmp_path, "    methods.decode.quantize: [null]", config)
    write_choice(space_of(path), trial_of((0,)))
    assert "    quantize: null\n" in path.read_text()


def test_an_anchor_that_others_use_is_left_alone(tmp_path):
    config = CONFIG.replace("decode:\n", "decode: &all\n").replace("encode: {}\n  ", "")
    config = config.replace("tune:\n", "  encode: *all\ntune:\n")
    path = write_config(tmp_path, "    methods.decode.partitioners: [[]]", config)
    before = path.read_text()
    with pytest.raises(PipelineError, match="can't be edited without changing other values"):
        write_choice(space_of(path), trial_of((0,)))
    assert path.read_text() == before
