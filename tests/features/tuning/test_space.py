"""Spaces: mistakes with their lines, and the config of each combination."""

import pytest

from pipeline.features.tuning.space import (
    compose_choice,
    find_choice_problems,
    find_figure_problems,
    make_trial_data,
)
from pipeline.features.tuning.trials import TrialFolder
from pipeline.store.errors import PipelineError
from tests.features.tuning.spaces import (
    CONFIG,
    SPACE,
    problems_of,
    space_of,
    workspace_at,
    write_config,
)
from tests.support.configs import read_configs

PATH = "partition_configs/pair.yaml"
KNOWN = "known: partitioners, modules, edge, quantize, emit, allow_none, recipe"


@pytest.mark.parametrize(
    ("written", "line"),
    [
        (
            "  objectives: {latency_p95.native: min}",
            "tune.objectives.'latency_p95.native': no validation runs on a device 'native'; "
            "write `validate: {devices: [native]}`",
        ),
        (
            "  limits: {max_peak_memory.pixel: 4MB}",
            "tune.limits.'max_peak_memory.pixel': no validation runs on a device 'pixel'; "
            "write `validate: {devices: [pixel]}`",
        ),
        (
            "  objectives: {energy.qemu:max: min, peak_memory.qemu:max: min}",
            "tune.objectives.'energy.qemu:max': no device measures energy; "
            "use latency_p95.<device> or peak_memory.<device>",
        ),
        (
            "  limits: {min_metrics.top: 0.7, min_metrics.top1: 0.7, max_metrics.quality.wer: 1}",
            "tune.limits.'min_metrics.top': no validation measures a metric 'top'; "
            "did you mean 'top1'? known: top1, quality",
        ),
    ],
)
def test_figures_are_those_of_the_validation(tmp_path, written, line):
    path = write_config(tmp_path, f"{SPACE}\n{written}")
    document = read_configs(path.parent).documents["pair"]
    problems = find_figure_problems(document, ["qemu:max"], ["top1", "quality"])
    assert [str(problem) for problem in problems] == [f"{PATH}:15: {line}"]


def test_without_metrics_the_setting_is_named(tmp_path):
    path = write_config(tmp_path, f"{SPACE}\n  objectives: {{metrics.top1.drop: min}}")
    document = read_configs(path.parent).documents["pair"]
    (problem,) = find_figure_problems(document, [], [])
    assert str(problem).endswith("; write `validate: {metrics: {top1.drop: {}}}`")


@pytest.mark.parametrize(
    ("space", "line"),
    [
        (
            "    methods.encod.quantize: [null]",
            f"{PATH}:13: tune.space.'methods.encod.quantize': there is no method 'encod'; "
            "did you mean 'encode'? known: encode, decode",
        ),
        (
            "    validate.atol: [1.0]",
            f"{PATH}:13: tune.space.'validate.atol': is not the path of a tunable setting; "
            "write methods.<method>.<key>, defaults.<key> or emit.<key>",
        ),
        (
            "    methods.encode: [{}]",
            f"{PATH}:13: tune.space.'methods.encode': is a whole method; "
            "write methods.encode.quantize or another key of it",
        ),
        (
            "    methods.encode.edge: [{}]\n    methods.encode.edge.keep_ranges: [true]",
            f"{PATH}:13: tune.space.'methods.encode.edge': contains "
            "'methods.encode.edge.keep_ranges', which also has alternatives; keep one of them",
        ),
        (
            "    methods.encode.partitioners:\n      - []\n      - []",
            f"{PATH}:15: tune.space.'methods.encode.partitioners'[1]: occurs twice; keep one",
        ),
        (
            "    methods.encode.quantise:\n      - {quantizer: xnnpack}",
            f"{PATH}:14: tune.space.'methods.encode.quantise'[0]: unknown key 'quantise'; "
            f"did you mean 'quantize'? {KNOWN}",
        ),
        (
            "    methods.encode.quantize:\n      - null\n      - {quantizer: xnnpack, dynamic: 3}",
            f"{PATH}:15: tune.space.'methods.encode.quantize'[1].dynamic: is 3, "
            "must be true or false",
        ),
    ],
)
def test_mistakes_have_the_line_of_the_alternative(tmp_path, space, line):
    assert problems_of(write_config(tmp_path, space)) == [line]


def test_several_mistakes_are_reported_together(tmp_path):
    space = "    methods.x.quantize: [null]\n    model: [pair]"
    assert [line.split(": ")[0] for line in problems_of(write_config(tmp_path, space))] == [
        f"{PATH}:13",
        f"{PATH}:14",
    ]


@pytest.mark.parametrize(
    ("section", "fault"),
    [
        ("  objectives: {sqr: max}", "tune.objectives.sqr: is 'sqr', must be a figure; did you"),
        (
            "  objectives: {size: least}",
            "tune.objectives.size: is 'least', must be one of the known",
        ),
        ("  limits: {sqnr: 20}", "tune.limits.sqnr: is 'sqnr', must be min_<figure> or max_"),
        ("  limits: {max_size: big}", "tune.limits.max_size: is 'big', must be a number, a share"),
        (
            "  limits: {min_sqnr: 2MB}",
            "tune.limits: min_sqnr can't be a size; is '2MB', write a number",
        ),
        ("  limits: {max_latency.native: 2MB}", "tune.limits: max_latency.native can't be a size"),
        (
            "  limits: {min_delegated_ops: 90}",
            "tune.limits: min_delegated_ops can't exceed 1; is 90",
        ),
        ("  trials: 0", "tune.trials: is 0, must be at least 1"),
    ],
)
def test_objectives_and_limits_are_checked(tmp_path, section, fault):
    path = write_config(tmp_path)
    path.write_text(path.read_text() + section)
    (line,) = problems_of(path)
    assert line.startswith(f"{PATH}:15: {fault}")


def test_a_sound_space_has_no_mistakes(tmp_path):
    path = write_config(tmp_path)
    path.write_text(path.read_text() + "  limits: {min_delegated_ops: 90%, max_size: 2MB}")
    assert problems_of(path) == []


def test_an_alternative_may_need_another_one(tmp_path):
    """The quantizer's device matches the partitioner's in a single combination."""
    space = (
        "    methods.decode.partitioners: [[xnnpack], [{ethos-u: {target: ethos-u85-256}}]]\n"
        "    methods.decode.quantize:\n"
        "      - {quantizer: xnnpack}\n"
        "      - {quantizer: ethos-u, target: ethos-u85-256}\n"
        "      - {quantizer: ethos-u, target: ethos-u55-128}"
    )
    path = write_config(tmp_path, space)
    assert problems_of(path) == []
    fitting = [not find_choice_problems(space_of(path), (1, number)) for number in range(3)]
    assert fitting == [True, True, False]


def test_a_trial_is_the_config_with_its_alternatives(tmp_path):
    space = space_of(write_config(tmp_path))
    assert space.size == 4
    trial = make_trial_data(compose_choice(space, (1, 1)))
    assert trial == {
        "model": "pair",
        "target": "phone",
        "methods": {
            "encode": {"partitioners": []},
            "decode": {
                "partitioners": ["xnnpack"],
                "quantize": {"quantizer": "xnnpack", "per_channel": True},
            },
        },
    }
    present = make_trial_data(compose_choice(space, None))
    assert present == make_trial_data(compose_choice(space, (0, 0)))


def test_an_empty_alternative_takes_away_what_a_base_has(tmp_path):
    base = "model: pair\ndefaults: {quantize: {quantizer: xnnpack}}\n"
    write_config(tmp_path, config=base, name="_base")
    config = CONFIG.replace("model: pair", "extends: _base").replace("quantize: [null", "edge: [{}")
    path = write_config(tmp_path, "    methods.decode.quantize: [null]", config)
    methods = make_trial_data(compose_choice(space_of(path), (0,)))["methods"]
    assert methods["encode"]["quantize"] == {"quantizer": "xnnpack"}
    assert "quantize" not in methods["decode"]


def test_a_trial_has_no_family_and_no_gates_on_growth(tmp_path):
    path = write_config(tmp_path)
    gates = "{max_size: 1MB, max_size_growth: 1%, max_sqnr_drop: 3}"
    more = f"family: ours\nvalidate: {{gates: {gates}}}\nconstant_methods: {{get_text: $$5}}\n"
    path.write_text(path.read_text() + more)
    trial = make_trial_data(compose_choice(space_of(path), (0, 0)))
    assert trial["validate"] == {"gates": {"max_size": "1MB"}}
    assert trial["constant_methods"] == {"get_text": "$$5"}
    assert "family" not in trial and "tune" not in trial


def test_variables_are_filled_in_once(tmp_path, monkeypatch):
    monkeypatch.setenv("TUNE_FILE", "inputs/a.pt")
    space = (
        "    methods.decode.quantize:\n      - quantizer: xnnpack\n"
        "        calibration: $$${TUNE_FILE}"
    )
    path = write_config(tmp_path, space)
    assert problems_of(path) == []
    trial = make_trial_data(compose_choice(space_of(path), (0,)))
    assert trial["methods"]["decode"]["quantize"]["calibration"] == "$$inputs/a.pt"


def test_a_second_search_of_a_package_has_to_wait(tmp_path):
    folders = [TrialFolder(workspace_at(tmp_path), "pair") for _ in range(2)]
    match = "pair: another `doit tune`"
    with folders[0].held(), pytest.raises(PipelineError, match=match), folders[1].held():
        pass
    with folders[1].held():
        pass
