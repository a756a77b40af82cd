"""Baselines: short texts that someone accepted, read strictly, and equal for equal packages."""

import json

import pytest

from pipeline.features.gates import accept
from pipeline.features.gates.baseline import format_baseline, keep_accepted, parse_baseline
from pipeline.features.gates.figures import make_figures
from pipeline.store.errors import ConfigErrors, PipelineError
from tests.support.builds import contents, manifest, proved, validation

GOLDEN = """\
# The accepted figures of asr. Gates such as `max_size_growth` compare later builds with
# them. `doit baseline asr` writes the current figures here, and `doit diff asr` shows
# the differences. Sizes are in bytes; only the largest tensors are listed.
digest: 1cdb9a1b4fb0cb3dd8ba6ca70ec2dfc7b05cabb5b77d3d1a8f40e5a8ac9be79b
size: 1000
segments:
  constants: 600
  delegate: 100
  program: 300
methods:
  decode:
    nodes: 10
    delegated_nodes: 9
    operators: 2
    delegated_operators: 1
    partitions:
      XnnpackBackend: 1
    left:
      aten.add.Tensor: 1
    planned_memory: 2304
    constants: 300
    delegated: 100
    outputs:
      logits: float32 [4]
      state: float32 [4]
    sqnr_db: [42.1, 120.0]
    max_abs: 0.012
  encode:
    nodes: 10
    delegated_nodes: 8
    operators: 2
    delegated_operators: 1
    partitions:
      XnnpackBackend: 1
    left:
      aten.view_copy: 2
    planned_memory: 2304
    constants: 300
    delegated: 100
    outputs:
      output: float32 [4]
    sqnr_db: [120.0]
tensors:
  decoder.weight: {dtype: float32, shape: [50], size: 200}
  encoder.weight: {dtype: float32, shape: [100], size: 400}
"""


def figures(**methods):
    return make_figures(manifest(), contents(), validation(**methods))


def read(text):
    return parse_baseline(text.encode(), "baselines/asr.yaml")


def text_of(*changes):
    text = GOLDEN
    for old, new in changes:
        assert old in text
        text = text.replace(old, new, 1)
    return text


def test_a_baseline_is_small_sorted_text():
    text = format_baseline("asr", figures())
    digest = figures()["digest"]
    assert text.replace(digest, "-") == GOLDEN.replace(GOLDEN.splitlines()[3][8:], "-")


def test_what_is_written_is_read():
    assert read(format_baseline("asr", figures())) == figures()


def test_only_the_largest_tensors_are_named():
    sizes = {f"layer.{n}.weight": 1000 + n for n in range(20)}
    found = read(format_baseline("asr", make_figures(manifest(), contents(**sizes))))
    assert sorted(found["tensors"]) == sorted(f"layer.{n}.weight" for n in range(10, 20))


def test_names_that_yaml_takes_for_something_else_are_quoted():
    sizes = {"on": 900, "1.5": 800, "a: b": 700, 'q"': 600, "": 500}
    before = make_figures(manifest(), contents(**sizes))
    assert read(format_baseline("asr", before)) == before
    assert {"on", "1.5", "a: b", 'q"', "(unnamed)"} <= before["tensors"].keys()


def test_numerics_of_float32_are_those_of_any_machine():
    here = figures(encode=proved("encode", [131.0, "inf"], [124.0, 140.1], max_abs=3e-7))
    there = figures(encode=proved("encode", [139.0, 133.3], [142.0, 140.7], max_abs=9e-7))
    assert format_baseline("asr", here) == format_baseline("asr", there)


def test_extreme_inputs_do_not_count():
    record = proved("encode", [60.0], [50.0], [5.0])
    record["runs"][2]["case"] = "large"
    found = figures(encode=record)["methods"]["encode"]
    assert found["sqnr_db"] == [50.0] and found["max_abs"] == 0.012


def test_noise_hides_no_fall_on_examples():
    record = proved("decode", [49.6], [13.1])
    record["runs"][1]["generated"] = True
    assert figures(decode=record)["methods"]["decode"]["sqnr_db"] == [49.6]


def test_of_the_same_package_what_was_measured_elsewhere_stays():
    before = figures()
    near = figures(decode=proved("decode", [41.2, 118.0], max_abs=0.02))
    assert keep_accepted(near, before) == before
    worse = figures(decode=proved("decode", [38.0, 120.0]))
    assert keep_accepted(worse, before) == worse
    farther = figures(decode=proved("decode", [41.2, 120.0], max_abs=0.05))
    assert keep_accepted(farther, before)["methods"]["decode"]["max_abs"] == 0.05
    other = {**near, "digest": "f" * 64}
    assert keep_accepted(other, before) == other
    assert keep_accepted(near, None) == near


def timed(processor, median=1.0, ratio=0.5):
    """Return figures with a latency of `encode`."""
    steady = {"median": median, "low": median - 0.1, "high": median + 0.1, "runs": 9}
    record = proved("encode", [131.0]) | {"latency": {"steady_ms": steady, "ratio": ratio}}
    return make_figures(
        manifest(), contents(), validation(encode=record) | {"processor": processor}
    )


def test_latencies_are_of_a_processor_and_stay_with_the_package():
    accepted = timed("a fast one, 2 cores")
    text = format_baseline("asr", accepted)
    assert "processor: a fast one, 2 cores\n" in text
    assert "    latency: {median: 1.0, low: 0.9, high: 1.1, ratio: 0.5}\n" in text
    assert read(text) == accepted
    assert keep_accepted(timed("another", 3.0), accepted) == accepted
    assert keep_accepted(timed("another", 3.0), figures())["processor"] == "another"
    untimed = make_figures(manifest(), contents(), validation() | {"processor": "a fast one"})
    assert untimed["processor"] is None


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", ["baselines/asr.yaml: is empty; `doit baseline` writes it"]),
        ("- 1\n", ["baselines/asr.yaml: is a list, must be a mapping"]),
        (
            text_of(("size: 1000", "size: big"), ("nodes: 10", "nodes: -1")),
            [
                "baselines/asr.yaml:5: size: is 'big', must be a whole number",
                "baselines/asr.yaml:12: methods.decode.nodes: is -1, must be at least 0",
            ],
        ),
        (
            text_of(("digest: 1", "digest: x"), ("segments:", "sements:")),
            [
                "baselines/asr.yaml:4: digest: is 'xcdb9a1b4fb0cb3dd8ba6ca70ec2dfc7b05cabb5b77"
                "d3d1a8f40e5a8a...', must be a BLAKE3 digest: 64 hexadecimal digits",
                "baselines/asr.yaml:6: unknown key 'sements'; did you mean 'segments'? known: "
                "digest, files, size, segments, processor, tensors, methods",
            ],
        ),
        (
            text_of(("sqnr_db: [42.1, 120.0]", "sqnr_db: [yes]")),
            [
                "baselines/asr.yaml:26: methods.decode.sqnr_db[0]: `yes` has different meanings "
                "in YAML 1.1 and 1.2; write true or false, or quote it if it is a string"
            ],
        ),
        (
            text_of(("size: 1000", "size: 1000\nsize: 2000")),
            ["baselines/asr.yaml:6: 'size' occurs twice, first in line 5"],
        ),
        (
            text_of(("    operators: 2\n", ""), ("    left:", "    lost:")),
            [
                "baselines/asr.yaml:11: methods.decode.operators: is missing",
                "baselines/asr.yaml:17: methods.decode: unknown key 'lost'; known: nodes, "
                "delegated_nodes, operators, delegated_operators, partitions, left, "
                "planned_memory, constants, delegated, outputs, sqnr_db, max_abs, latency",
            ],
        ),
    ],
    ids=["empty", "list", "values", "keys", "yaml 1.1", "twice", "inside"],
)
def test_mistakes_are_told_by_line(text, told):
    with pytest.raises(ConfigErrors) as mistakes:
        read(text)
    assert str(mistakes.value).splitlines() == told


GATES = "validate: {gates: {max_size_growth: 10%, max_delegation_drop: 5%, max_sqnr_drop: 3}}\n"


@pytest.mark.slow
def test_a_regression_is_refused_until_it_is_accepted(built):
    path = built.root / "baselines" / "pair.yaml"
    config = built.root / "partition_configs" / "pair.yaml"
    assert built.doit("baseline") == 0
    assert built.output == "baselines/pair.yaml: new; 4.6 kB\n"
    text = path.read_text()
    found = read(text)
    assert found["methods"]["decode"]["sqnr_db"] == [120.0]
    assert found["methods"]["encode"]["left"]["aten.relu"] == 1

    config.write_text(config.read_text() + GATES)
    assert built.doit() == 0, built.output
    assert built.doit() == 0
    assert built.output == "up to date: 1 package\n"
    assert built.doit("baseline", "pair") == 0
    assert built.output == "baselines/pair.yaml: unchanged\n"
    assert path.read_text() == text

    built.edit("partition_configs/pair.yaml", "[xnnpack]", "[]")
    assert built.doit("baseline") == 1
    assert "pair: its build is out of date (decode: config" in built.output
    assert "; run `doit validate:pair` first" in built.output
    assert path.read_text() == text

    assert built.doit() == 1
    sentence = (
        "decode: 0.0 % of nodes delegated, 100.0 % in the baseline: 100.0 % less, at most 5.0 % "
    )
    assert sentence + "allowed; newly left to portable kernels: aten." in built.output
    assert built.doit("baseline") == 0
    assert built.output.startswith("baselines/pair.yaml: changed; size ")
    assert built.doit() == 0, built.output


def test_a_baseline_that_cannot_be_written_is_said_in_one_line(tmp_path):
    (tmp_path / "baselines").write_text("")
    with pytest.raises(PipelineError, match=r"^baselines/asr.yaml: can't be written: File exists"):
        accept._write(tmp_path / "baselines" / "asr.yaml", b"")


@pytest.mark.slow
def test_what_is_wrong_with_baselines_is_told(built):
    folder = built.root / "baselines"
    folder.mkdir()
    (folder / "gone.yaml").write_text("any: thing\n")
    (folder / "pair.yaml").write_text("size: many\n")
    assert built.doit("validate") == 1
    assert "baselines/pair.yaml:1: size: is 'many', must be a whole number" in built.output
    assert "validate:pair failed: " in built.output  # no stage: nothing was run
    assert json.loads(built.bytes_of("pair", "report.json"))["verdict"] == "failed"
    assert built.doit("baseline", "pear") == 1
    assert "no package 'pear'; did you mean 'pair'?" in built.output
    built.edit("partition_configs/pair.yaml", "model:", "validate: {inputs: 1}\nmodel:")
    assert built.doit("baseline") == 1
    assert "pair: its current build is not validated; run `doit validate:pair`" in built.output
    assert "baselines/gone.yaml: there is no package 'gone'; remove the file" in built.output
    built.edit("partition_configs/pair.yaml", "inputs: 1", "atol: 0.1")
    assert built.doit("baseline") == 1  # the tolerances are part of the report
    built.edit("partition_configs/pair.yaml", "atol: 0.1", "gates: {max_size: 1}")
    assert built.doit("baseline") == 0
    assert "baselines/pair.yaml: replaced, since it could not be read; 4.6 kB" in built.output
    built.edit("partition_configs/pair.yaml", "gates: {max_size: 1}", "seed: 5, budget: 1.0e-9")
    assert built.doit("validate") == 0, built.output
    assert built.doit("baseline") == 1
    assert "pair: the last validation ran out of time and left some inputs out" in built.output
    assert built.doit("validate") == 0  # the budget is already spent, and isn't spent twice
    assert "up to date: 1 package" in built.output
    assert "left out: validate.budget was exhausted" in built.output
    built.edit("partition_configs/pair.yaml", "budget: 1.0e-9", "budget: 299")
    assert built.doit("validate") == 0
    assert "1 built" in built.output and "left out" not in built.output
