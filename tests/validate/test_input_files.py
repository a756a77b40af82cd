"""Input sets from files next to the config, which validation uses in place of the model's own."""

import json

import numpy
import pytest
import torch
from safetensors.torch import save_file

from pipeline.program.input_files import read_examples
from pipeline.store.digest import hash_file
from pipeline.store.errors import PipelineError, SourceError
from tests.features.quantization.test_calibration import CALLS, FILES, PROGRAM

VALIDATE = "validate pair"
CONFIG = "partition_configs/pair.yaml"
QUOTED = f"{CONFIG}, whose lines the report quotes, changed"  # and no example inputs


def planned(root, *names):
    return [(name, hash_file(root / name)) for name in names]


def test_files_are_read_one_after_another(tmp_path):
    for name, write in FILES.items():
        write(tmp_path / name)
    found = read_examples(tmp_path, {"f": planned(tmp_path, *FILES)}, {"f": PROGRAM})
    assert [each.origin for each in found["f"]] == [
        f"{name}[{n}]" for name in FILES for n in range(3)
    ]
    assert all(not each.generated for each in found["f"])
    for number, each in enumerate(found["f"]):
        assert torch.equal(each.args[0], CALLS[number % 3][0])


def test_all_that_is_wrong_with_files_is_told_at_once(tmp_path):
    (tmp_path / "a.npz").write_bytes(b"not a zip")
    torch.save([], tmp_path / "b.pt")
    save_file({"y": torch.ones(2, 3)}, tmp_path / "c.safetensors")
    numpy.savez(
        tmp_path / "d.npz",
        **{
            "x": numpy.ones((0, 2, 3)),
            "state['a']": numpy.ones((0, 3)),
            "state['b']": numpy.ones((0, 2)),
        },
    )
    files = {
        "f": planned(tmp_path, "a.npz", "b.pt"),
        "g": planned(tmp_path, "c.safetensors", "d.npz"),
    }
    with pytest.raises(PipelineError) as caught:
        read_examples(tmp_path, files, {"f": PROGRAM, "g": PROGRAM})
    lines = str(caught.value).splitlines()
    assert lines[0].startswith("f: a.npz: cannot be read as a .npz file (")
    assert (
        lines[1] == "f: b.pt: holds a list of 0, must be a list of tuples of arguments or of dicts"
    )
    assert lines[2].startswith("g: c.safetensors: no argument 'y'; known: x, ")
    assert lines[3:] == [
        *(
            f"g: c.safetensors: argument '{n}' is missing"
            for n in ("x", "state['a']", "state['b']")
        ),
        "g: d.npz: contains no input sets",
    ]


def test_a_file_that_is_another_by_now_is_refused(tmp_path):
    FILES["a.npz"](tmp_path / "a.npz")
    files = {"f": [("a.npz", "0" * 64)]}
    with pytest.raises(PipelineError, match=r"f: a\.npz: changed while the build ran"):
        read_examples(tmp_path, files, {"f": PROGRAM})
    assert issubclass(SourceError, PipelineError)


# Through doit


def write_inputs(bench, name, scale=1.0):
    path = bench.root / name
    path.parent.mkdir(exist_ok=True)
    x = torch.arange(48.0).reshape(3, 2, 8) * scale
    numpy.savez(path, x=x.numpy())


def say(bench, text):
    bench.edit(CONFIG, "constant", f"validate: {{{text}}}\nconstant")


def record(bench, method):
    methods = json.loads(bench.bytes_of("pair", "report.json"))["methods"]
    return next(each for each in methods if each["method"] == method)


@pytest.mark.slow
def test_a_package_is_validated_on_files(built):
    write_inputs(built, "inputs/decode.npz")
    say(built, "inputs: 1, methods: {decode: {examples: [inputs/decode.npz]}}")
    assert built.doit("validate") == 0, built.output
    assert [n for n, what in built.outcomes().items() if what == "built"] == [VALIDATE]
    runs = record(built, "decode")["runs"]
    assert [run["origin"] for run in runs if not run["case"]] == [
        *(f"inputs/decode.npz[{n}]" for n in range(3)),
        "generated 0 (seed 0)",
    ]
    assert [run["generated"] for run in runs] == [False] * 3 + [True] * (len(runs) - 3)
    assert [run["case"] for run in runs[:5]] == ["", "", "", "zeros", "large"]
    usual = [error["max_abs"] for run in runs if not run["case"] for error in run["outputs"]]
    assert record(built, "decode")["max_abs"] == max(usual)
    cases = [run["origin"] for run in record(built, "encode")["runs"]]
    assert cases == [
        "example 0",
        "generated 1 (seed 0): zeros",
        "generated 2 (seed 0): large, 1024 times",
        "generated 3 (seed 0): strided, transposed, values of example 0",
        "generated 4 (seed 0): strided, every second value, values of example 0",
        "generated 5 (seed 0): expanded, values of example 0",
        "generated 0 (seed 0)",
    ]
    assert built.doit() == 0
    assert built.output == "up to date: 1 package\n"

    # Their content counts, not where they are.
    (built.root / "inputs/decode.npz").rename(built.root / "inputs/other.npz")
    built.edit(CONFIG, "inputs/decode.npz", "inputs/other.npz")
    assert built.doit("plan") == 0 and QUOTED in built.output, built.output
    assert built.doit() == 0
    assert [n for n, what in built.outcomes().items() if what == "built"] == [VALIDATE]
    write_inputs(built, "inputs/other.npz", scale=2.0)
    assert built.doit("explain", "pair") == 0
    assert "- example inputs of decode changed" in built.output
    assert built.doit() == 0, built.output
    assert [n for n, what in built.outcomes().items() if what == "built"] == [VALIDATE]

    # All mistakes are reported, before anything runs or by the validation.
    (built.root / "inputs/other.npz").unlink()
    assert built.doit("plan") == 1
    where = "pair.yaml:7: validate.methods.decode.examples"
    assert f"{where}: no file 'inputs/other.npz' in the workspace" in built.output
    (built.root / "inputs/other.npz").write_bytes(b"nothing")
    (built.root / "inputs/encode.npz").write_bytes(b"nothing")
    built.edit(
        CONFIG, "methods: {decode", "methods: {encode: {examples: inputs/encode.npz}, decode"
    )
    assert built.doit("validate") == 1
    for method, name in (("encode", "encode"), ("decode", "other")):
        fault = f"{method}.examples: inputs/{name}.npz: cannot be read as a .npz file"
        assert fault in built.output


def test_a_file_of_inputs_that_do_not_fit_fails_its_method(built):
    torch.save(
        [(torch.ones(2, 8),), (torch.ones(2, 9),), (torch.ones(2, 8).double(),)],
        built.root / "x.pt",
    )
    say(built, "methods: {decode: {examples: x.pt, cases: []}}, cases: [zeros]")
    assert built.doit("validate") == 1
    assert record(built, "encode")["ok"]
    assert [run["origin"] for run in record(built, "decode")["runs"]] == [
        "x.pt[0]",
        *(f"generated {n} (seed 0)" for n in range(3)),
    ]
    assert [(f["inputs"], f["what"]) for f in record(built, "decode")["failures"]] == [
        ("x.pt[1]", "argument 'x': size 9 at dimension 1, must be 8"),
        ("x.pt[2]", "argument 'x': dtype float64, must be float32"),
    ]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            "methods: {decode: {examples: [a.csv]}}",
            "must end in .npz, .pt, .safetensors, unlike 'a.csv'",
        ),
        ("methods: {decode: {examples: /a.npz}}", "must be files by their path in the workspace"),
        (
            "cases: [zero]",
            "validate.cases[0]: is 'zero', must be one of the known values; did you mean 'zeros'?",
        ),
        (
            "cases: [zeros, zeros]",
            "validate.cases: is a list, must not contain duplicates",
        ),
        (
            "sequences: [[encode, decoder]]",
            "validate.sequences[0][1]: 'decoder' is not a method of this package",
        ),
        (
            "sequences: [[encode, decode]]",
            "validate.sequences[0]: its methods share no state: each has its own buffers; set "
            "`emit: {memory_planning: {share_mutable_buffers: true}}`",
        ),
    ],
)
def test_what_the_config_can_not_say(bench, text, told):
    pair = bench("pair")
    say(pair, text)
    assert pair.doit("plan") == 1
    assert told in pair.output
