"""Calibration: the source of its inputs, that it doesn't run twice, and how it is reported."""

import json
import shutil
from contextlib import nullcontext
from pathlib import Path

import numpy
import pytest
import torch
from safetensors.torch import save_file
from torch.export import Dim, export

from pipeline.backends import QUANTIZERS
from pipeline.cli.grammar import Target
from pipeline.features.explain.explain import run as explain
from pipeline.features.explain.plan import preview
from pipeline.features.quantization.calibration import (
    calibration_digests,
    calibration_remedy,
    lacks_calibration,
)
from pipeline.features.quantization.quantize import Batches, check_batches
from pipeline.plan.plan import Plan
from pipeline.program.input_files import read_file
from pipeline.program.inputs import InputSet
from pipeline.program.sources import MethodSource
from pipeline.run.action_status import ActionStatus, progress_path, read_progress
from pipeline.run.batch import Batch
from pipeline.run.pool import Pool
from pipeline.store.errors import ConfigErrors, PipelineError
from pipeline.store.store import Store
from pipeline.store.workspace import Workspace
from tests.support.bench import bench_of
from tests.support.forked import forked_workers

STATIC = "decode:\n    quantize: {quantizer: xnnpack}"
GENERATED = """

def calibration_inputs(method):
    torch.manual_seed(5)
    for _ in range(3):
        yield (torch.randn(2, SIZE),)
"""


def plan_of(bench):
    return Plan(Workspace(bench.root, Store(bench.store), 2))


@pytest.fixture(scope="module")
def _calibrated(tmp_path_factory):
    """The sample `pair`, whose method `decode` is calibrated on inputs from its exporter."""
    bench = bench_of("pair", tmp_path_factory.mktemp("calibrated"))
    path = bench.root / "models" / "pair.py"
    path.write_text(path.read_text() + GENERATED)
    bench.edit("partition_configs/pair.yaml", "decode:", STATIC)
    bench.edit("partition_configs/pair.yaml", "constant", "validate: {atol: 0.1}\nconstant")
    assert bench.doit() == 0, bench.output
    return bench


@pytest.fixture
def calibrated(_calibrated, tmp_path):
    copy = type(_calibrated)(tmp_path / "pair", _calibrated.output)
    shutil.copytree(_calibrated.root, copy.root)
    return copy


QUANTIZE, COMPILE = "quantize pair/decode", "compile pair/decode"


@pytest.mark.slow
def test_a_calibration_is_an_action(calibrated):
    assert calibrated.outcomes()[QUANTIZE] == "built"
    assert "built    quantize pair/decode" in calibrated.output
    assert calibrated.output.count("quantize") == 1
    assert calibrated.doit() == 0
    assert calibrated.outcomes()[QUANTIZE] == "up-to-date"
    assert calibrated.doit("cache") == 0
    assert "1 quantize" in calibrated.output


@pytest.mark.slow
def test_another_partitioner_does_not_calibrate_again(calibrated):
    calibrated.edit("partition_configs/pair.yaml", "[xnnpack]", "[xnnpack: {per_op_mode: true}]")
    assert calibrated.doit("lower") == 0, calibrated.output
    outcomes = calibrated.outcomes()
    assert (outcomes[QUANTIZE], outcomes[COMPILE]) == ("up-to-date", "built")


@pytest.mark.slow
def test_another_package_does_not_calibrate_again(calibrated):
    configs = calibrated.root / "partition_configs"
    text = (configs / "pair.yaml").read_text().replace("[xnnpack]", "[]")
    (configs / "other.yaml").write_text(text)
    assert calibrated.doit("lower:other") == 0, calibrated.output
    outcomes = calibrated.outcomes()
    assert outcomes["quantize other/decode"] == "hit"
    assert outcomes["compile other/decode"] == "built"


def quantized_blobs(bench):
    (action,) = plan_of(bench).quantizes("pair").values()
    store = Store(bench.store)
    return [store.blob_path(blob) for blob in store.get(action.digest).result["blobs"]]


@pytest.mark.slow
def test_a_compiled_method_needs_no_quantized_program(calibrated):
    for path in quantized_blobs(calibrated):
        path.unlink()
    shutil.rmtree(calibrated.root / "build")
    assert calibrated.doit("lower") == 0, calibrated.output
    assert set(calibrated.outcomes().values()) <= {"hit", "up-to-date"}
    plan = plan_of(calibrated)
    assert list(preview(plan, [Target("pair")]))[-1].startswith("5 current, 1 in the store")


@pytest.mark.slow
def test_an_evicted_quantized_program_is_made_again_where_it_is_needed(calibrated):
    before = calibrated.bytes_of("pair", "pair.pte")
    for path in quantized_blobs(calibrated):
        path.unlink()
    calibrated.edit("partition_configs/pair.yaml", "[xnnpack]", "[xnnpack: {per_op_mode: true}]")
    assert calibrated.doit("lower") == 0, calibrated.output
    assert calibrated.outcomes()[QUANTIZE] == "built"
    calibrated.edit("partition_configs/pair.yaml", "[xnnpack: {per_op_mode: true}]", "[xnnpack]")
    assert calibrated.doit("lower") == 0
    assert calibrated.bytes_of("pair", "pair.pte") == before


@pytest.mark.slow
def test_what_vanishes_while_a_run_is_under_way_is_made_again_in_it(calibrated):
    calibrated.edit("partition_configs/pair.yaml", "[xnnpack]", "[xnnpack: {per_op_mode: true}]")
    plan = plan_of(calibrated)
    (action,) = [a for a in plan.compiles("pair") if a.method == "decode"]
    for path in quantized_blobs(calibrated):  # after it has been read
        path.unlink()
    pool = Pool(plan.workspace, 2, always=False)
    try:
        batch = Batch(plan, pool, lambda queue, steps: nullcontext(lambda event: None))
        with forked_workers():
            ((same, event),) = batch.run([action])
    finally:
        pool.close()
    assert (event.error, event.outcome, same.digest) == ("", "built", action.digest)
    made = [(report.event.title, report.event.outcome) for report in batch.reports]
    assert made == [(COMPILE, "lost"), (QUANTIZE, "built"), (COMPILE, "built")]


@pytest.mark.slow
def test_why_a_method_is_quantized_again_is_told_once(calibrated):
    calibrated.edit(
        "partition_configs/pair.yaml",
        "{quantizer: xnnpack}",
        "&q {quantizer: xnnpack, per_channel: false}",
    )
    lines = list(explain(plan_of(calibrated), ["pair/decode"]))
    change = "  - config methods.decode.quantize.per_channel: True -> False"
    assert lines[lines.index("quantize pair/decode: to do") + 2] == change
    assert lines[lines.index("compile pair/decode: to do") + 2] == change
    assert lines.count(change) == 2


@pytest.mark.slow
def test_a_generator_of_inputs_is_kept_batch_by_batch(calibrated):
    (source,) = [m for n, m in plan_of(calibrated).methods("pair").items() if n == "decode"]
    assert len(source.batches) == 3


# None


SPEC = QUANTIZERS["xnnpack"].options
SOURCE = MethodSource(Path("m.pt2"), "f", "program", examples="e")
WITHOUT = {
    "an archive's own arguments": (SOURCE._replace(examples_of_export=True), {}, True),
    "an exporter's own arguments": (
        SOURCE._replace(examples_of_export=True, exported=True),
        {},
        True,
    ),
    "nothing at all": (SOURCE._replace(examples=None), {}, True),
    "examples": (SOURCE, {}, False),
    "calibration inputs": (SOURCE._replace(examples=None, calibration="c"), {}, False),
    "nothing, and dynamic": (SOURCE._replace(examples=None), {"dynamic": True}, False),
    "nothing, and generated": (
        SOURCE._replace(examples=None),
        {"calibration": "generated"},
        False,
    ),
}


@pytest.mark.parametrize(("source", "options", "lacking"), WITHOUT.values(), ids=WITHOUT)
def test_static_quantization_without_inputs_is_found(source, options, lacking):
    spec = SPEC(quantizer="xnnpack", **options)
    assert lacks_calibration(spec, source) == lacking
    remedy = calibration_remedy(spec, source)
    assert ("add calibration_inputs(method) to the exporter" in remedy) == source.exported
    assert "`calibration: generated`" in remedy


def test_dynamic_quantization_is_advised_where_there_is_any():
    for name, advised in (("xnnpack", True), ("coreml", False), ("openvino", False)):
        spec = QUANTIZERS[name].options(quantizer=name)
        assert ("dynamic: true" in calibration_remedy(spec, SOURCE)) == advised


def test_generated_inputs_have_a_key_of_their_own():
    generated = calibration_digests(SPEC(quantizer="xnnpack", calibration="generated"), SOURCE)
    assert generated == {"generated": "e"}
    assert calibration_digests(SPEC(quantizer="xnnpack"), SOURCE) == "e"


def test_files_and_generated_inputs_are_not_mixed():
    with pytest.raises(ValueError, match="with files and generated; name one of them"):
        SPEC(quantizer="xnnpack", calibration=["generated", "a.npz"])
    with pytest.raises(ValueError, match=r"must end in \.npz, \.pt, \.safetensors or be generated"):
        SPEC(quantizer="xnnpack", calibration="random")


@pytest.mark.slow
def test_random_inputs_are_observed_only_where_the_config_says_so(calibrated):
    """The export's arguments don't serve as examples: they are usually random numbers."""
    path = calibrated.root / "models" / "pair.py"
    path.write_text(path.read_text().removesuffix(GENERATED))
    assert calibrated.doit("export") == 0, calibrated.output
    assert calibrated.doit("check") == 1
    what = "pair.yaml:6: methods.decode.quantize: static quantization observes calibration inputs"
    assert what in calibrated.output
    assert calibrated.doit("lower") == 1
    calibrated.edit(
        "partition_configs/pair.yaml", "r: xnnpack}", "r: xnnpack, calibration: generated}"
    )
    assert calibrated.doit() == 0, calibrated.output
    facts = json.loads(calibrated.bytes_of("pair", "manifest.json"))["methods"]["decode"]
    assert facts["quantization"]["calibration"] == {"inputs": 8, "source": "generated"}
    assert "generated at random" in calibrated.bytes_of("pair", "report.md").decode()
    (action,) = plan_of(calibrated).quantizes("pair").values()
    result = Store(calibrated.store).get(action.digest).result
    assert result["prepared"]["agrees"] is True and result["prepared"]["calls"] == 8
    assert result["prepared"]["outputs"][0]["generated"] is True
    assert {**facts["quantization"]} == result["facts"]


# Files


def program():
    class Model(torch.nn.Module):
        def forward(self, x, state):
            return x + state["a"], state["b"] * 2

    shapes = {"x": {0: Dim("n", min=1, max=8)}, "state": {"a": None, "b": None}}
    example = (torch.ones(2, 3), {"a": torch.ones(3), "b": torch.ones(2, dtype=torch.int64)})
    return export(Model(), example, dynamic_shapes=shapes)


PROGRAM = program()
CALLS = [
    (torch.full((2, 3), float(n)), {"a": torch.zeros(3), "b": torch.tensor([n, 0])})
    for n in range(3)
]


def stacked():
    return {
        "x": torch.stack([x for x, _ in CALLS]),
        "state['a']": torch.stack([state["a"] for _, state in CALLS]),
        "state['b']": torch.stack([state["b"] for _, state in CALLS]),
    }


def write_npz(path, tensors=None):
    numpy.savez(path, **{name: t.numpy() for name, t in (tensors or stacked()).items()})


def write_safetensors(path, tensors=None):
    save_file(tensors or stacked(), path)


FILES = {
    "a.npz": write_npz,
    "a.safetensors": write_safetensors,
    "tuples.pt": lambda path: torch.save(CALLS, path),
    "dicts.pt": lambda path: torch.save([{"state": s, "x": x} for x, s in CALLS], path),
}


@pytest.mark.parametrize("name", FILES)
def test_every_format_gives_the_same_batches(tmp_path, name):
    FILES[name](tmp_path / name)
    batches = read_file(tmp_path / name, f"calib/{name}", PROGRAM)
    check_batches(PROGRAM, "f", batches)
    assert [each.origin for each in batches] == [f"calib/{name}[{n}]" for n in range(3)]
    for (x, state), inputs in zip(CALLS, batches, strict=True):
        assert torch.equal(inputs.args[0], x)
        assert all(torch.equal(inputs.args[1][key], state[key]) for key in "ab")


def without(name, **more):
    return {**{k: v for k, v in stacked().items() if k != name}, **more}


MISTAKES = {
    "unknown name": (
        without("x", y=torch.ones(3, 2, 3)),
        "c.npz: no argument 'y'; known: x, state['a'], state['b']\nc.npz: argument 'x' is missing",
    ),
    "batches": (
        without("x", x=torch.ones(2, 2, 3)),
        "c.npz: argument 'x': 2 batches, must be 3, as many as 'state['a']'",
    ),
    "no batches": (without("x", x=torch.tensor(1.0)), "c.npz: argument 'x': a single number, must"),
    "dtype": (
        without("x", x=torch.ones(3, 2, 3, dtype=torch.float64)),
        "f: c.npz[0]: argument 'x': dtype float64, must be float32",
    ),
    "shape": (
        without("x", x=torch.ones(3, 2, 4)),
        "f: c.npz[0]: argument 'x': size 4 at dimension 1, must be 3",
    ),
    "rank": (
        without("x", x=torch.ones(3, 2)),
        "f: c.npz[0]: argument 'x': rank 1, must be 2",
    ),
}


@pytest.mark.parametrize(("tensors", "message"), MISTAKES.values(), ids=MISTAKES)
def test_what_is_wrong_with_a_file_is_told(tmp_path, tensors, message):
    write_npz(tmp_path / "c.npz", tensors)
    with pytest.raises(PipelineError) as error:
        check_batches(PROGRAM, "f", read_file(tmp_path / "c.npz", "c.npz", PROGRAM))
    assert str(error.value).startswith(message)


UNREADABLE = {
    "c.npz": b"not a zip",
    "c.safetensors": b"\xff" * 20,
    "c.pt": b"not a zip",
}


@pytest.mark.parametrize(("name", "content"), UNREADABLE.items(), ids=UNREADABLE)
def test_an_unreadable_file_is_told(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(PipelineError) as error:
        read_file(tmp_path / name, name, PROGRAM)
    assert str(error.value).startswith(f"{name}: ")


class Evil:
    def __reduce__(self):
        return (exec, ("raise SystemExit('it ran')",))


@pytest.mark.parametrize("content", [[Evil()], {"x": 1}, [], torch.ones(1)], ids=type)
def test_a_pt_file_of_something_else_is_refused(tmp_path, content):
    torch.save(content, tmp_path / "c.pt")
    with pytest.raises(PipelineError, match=r"c\.pt: (contains|holds|cannot)"):
        read_file(tmp_path / "c.pt", "c.pt", PROGRAM)


def test_batches_are_read_anew_and_capped():
    reads = []

    def load(number):
        reads.append(number)
        return [InputSet((number, half)) for half in range(2)]

    batches = Batches([lambda n=n: load(n) for n in range(3)], limit=3)
    assert len(batches) == 3 and [each.args for each in batches] == [(0, 0), (0, 1), (1, 0)]
    assert 2 not in reads


@pytest.mark.slow
def test_a_package_is_calibrated_from_files(calibrated):
    (calibrated.root / "calib").mkdir()
    x = torch.randn(4, 2, 8)
    numpy.savez(calibrated.root / "calib" / "a.npz", x=x[:2].numpy())
    save_file({"x": x[2:].contiguous()}, calibrated.root / "calib" / "b.safetensors")
    files = "calibration: [calib/a.npz, calib/b.safetensors], batches: 3"
    calibrated.edit("partition_configs/pair.yaml", "r: xnnpack}", f"r: xnnpack, {files}}}")
    assert calibrated.doit("lower") == 0, calibrated.output
    assert calibrated.outcomes()[QUANTIZE] == "built"
    assert calibrated.doit("lower") == 0
    assert calibrated.output == "up to date: 1 package\n"
    numpy.savez(calibrated.root / "calib" / "a.npz", x=x[:2].numpy() * 9)
    assert calibrated.doit("plan") == 0
    assert "calibration inputs of decode changed" in calibrated.output
    (calibrated.root / "calib" / "a.npz").unlink()
    with pytest.raises(ConfigErrors, match=r"calibration: no file 'calib/a.npz' in the workspace"):
        plan_of(calibrated).check("pair")


# Progress


@pytest.mark.slow
def test_progress_is_read_from_what_a_worker_wrote(calibrated):
    plan = plan_of(calibrated)
    (action,) = plan.quantizes("pair").values()
    assert read_progress(action, plan.workspace) is None
    path = progress_path(action, plan.workspace)
    whole = '{"pid": 1, "stage": "quantize", "done": %d, "total": %d}'
    for text, told in (
        (whole % (12, 64), ActionStatus("quantize", 12, 64)),
        (whole % (0, 0), ActionStatus("quantize")),
        ("", None),
    ):
        path.write_text(text)
        assert read_progress(action, plan.workspace) == told
