"""A layer whose outlier weights ruin int8 is named and kept in float, measured on real builds."""

import json

import pytest
import yaml

from pipeline import moments
from pipeline.features.sensitivity.verb import run
from pipeline.store.errors import PipelineError
from tests.features.schemas.test_json_output import validate
from tests.support.bench import Bench

MODEL = '''
"""Five layers. Of layer 3, one column is huge, and reads a feature that is always zero."""
import torch
from torch import nn
from torch.export import export

WIDTH = 16


class Planted(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(5))

    def forward(self, x):
        for layer in self.layers:
            x = torch.relu(layer(x))
        return x


def inputs(seed, count):
    generator = torch.Generator().manual_seed(seed)
    return [(torch.rand(4, WIDTH, generator=generator),) for _ in range(count)]


def load():
    torch.manual_seed(0)
    model = Planted()
    for layer in model.layers:
        layer.weight.data = torch.eye(WIDTH) + 0.1 * torch.randn(WIDTH, WIDTH)
    model.layers[2].weight.data[0] = 0
    model.layers[2].bias.data[0] = 0
    model.layers[3].weight.data[:, 0] = 200
    return model.requires_grad_(False).eval()


def export_methods():
    return {"forward": export(load(), inputs(0, 1)[0])}


def example_inputs(method):
    return inputs(1, 4)


def calibration_inputs(method):
    return inputs(2, 8)
'''
METRIC = """\
from planted import inputs, load


def data(method):
    model = load()
    for (x,) in inputs(5, 40):
        yield x, model(x)


def metric(outputs, labels):
    pairs = zip(outputs, labels)
    return sum(float((x - y).abs().max() <= 0.3) for x, y in pairs) / len(labels)
"""
CONFIG = """\
# One layer is planted.
model: planted
methods:
  forward:
    quantize: {quantizer: xnnpack, per_channel: true}   # of 8 bits
    partitioners: [xnnpack]
validate:
  min_sqnr: 20  # dB
  metrics: {close: {min: 0.8}}
"""
PORTABLE = "model: planted\nmethods: {forward: {partitioners: []}}\n"
WORDS = ("--variants", "1", "--metric", "close", "--write", "--json")


@pytest.fixture(scope="module")
def planted(tmp_path_factory):
    """The workspace after `doit sensitivity planted --metric close --write`."""
    root = tmp_path_factory.mktemp("planted")
    for name, text in {
        "dodo.py": "from pte_pipeline.tasks import *\n",
        "models/planted.py": MODEL,
        "metrics/close.py": METRIC,
        "partition_configs/planted.yaml": CONFIG,
        "partition_configs/plain.yaml": PORTABLE,
    }.items():
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_text(text)
    bench = Bench(root)
    assert bench.doit("sensitivity", "planted", "--variants", "1") == 0, bench.output
    bench.text = bench.output
    assert bench.doit("validate:planted") == 1, bench.output  # 5 dB
    bench.report = json.loads((root / "build" / "planted" / "report.json").read_text())
    bench.first = json.loads((root / "build" / "planted" / "sensitivity.json").read_text())
    bench.page = (root / "build" / "planted" / "report.md").read_text()
    assert bench.doit("sensitivity", "planted", "--variants", "1") == 0, bench.output
    bench.again = bench.output
    assert bench.doit("sensitivity", "planted", *WORDS) == 0, bench.output
    return bench


@pytest.fixture(scope="module")
def printed(planted):
    """Return the command's JSON output, which is one line."""
    (line,) = (line for line in planted.output.splitlines() if line.startswith("{"))
    return json.loads(line)


@pytest.fixture(scope="module")
def record(planted):
    return json.loads((planted.root / "build" / "planted" / "sensitivity.json").read_text())


@pytest.mark.slow
def test_what_is_printed_keeps_to_its_schema(printed, record):
    validate("sensitivity", printed)
    assert printed["packages"] == [record]
    assert printed["written"] == ["partition_configs/planted.yaml"]


@pytest.mark.slow
def test_the_planted_layer_alone_is_kept(record):
    method = record["methods"]["forward"]
    assert method["sqnr_db"] < 10 and method["float_sqnr_db"] > 100
    assert method["kept"] == ["layers.3"]
    assert [row["module"] for row in method["modules"] if row["chosen"]] == ["layers.3"]
    noisiest, *quieter = method["modules"]
    assert noisiest["module"] == "layers.3" and noisiest["measured"]
    assert noisiest["share"] > 0.9 and noisiest["saved_bytes"] == 16 * 16 * 3
    assert all(row["sqnr_db"] > 20 for row in quieter)
    assert method["runs"] < method["one_by_one"] == 6


@pytest.mark.slow
def test_the_proposal_was_measured_where_it_was_quantized(record):
    figures = record["verified"]["methods"]["forward"]
    assert figures["sqnr_db"] >= 20
    # Quantizing again gives what switching back to float predicted.
    assert figures["sqnr_db"] == pytest.approx(record["methods"]["forward"]["expected_db"], abs=1)
    assert record["verified"]["bytes"] > record["bytes"]


@pytest.mark.slow
def test_the_config_takes_the_proposal_and_keeps_its_layout(planted):
    text = (planted.root / "partition_configs" / "planted.yaml").read_text()
    added = ", modules: {layers.3: none}"
    assert added in text and text.replace(added, "") == CONFIG
    quantize = yaml.safe_load(text)["methods"]["forward"]["quantize"]
    assert quantize["modules"] == {"layers.3": "none"}


@pytest.mark.slow
def test_what_was_verified_is_a_hit_afterwards(planted):
    assert planted.doit("lower", "planted") == 0, planted.output
    outcomes = planted.outcomes()
    assert outcomes["quantize planted/forward"] == "hit"
    assert outcomes["compile planted/forward"] == "hit"


def test_options_are_checked(built):
    assert built.doit("sensitivity", "pair", "--floor", "much") == 1
    assert "--floor much: must be a number, such as --floor 30" in built.output
    assert built.doit("sensitivity") == 1
    assert "name a package: doit sensitivity <package>" in built.output


@pytest.mark.slow
def test_the_same_question_runs_nothing(planted):
    assert "planted/forward: SQNR" in planted.text and "built" in planted.text
    assert "built" not in planted.again
    assert "planted: already measured; nothing was run" in planted.again


@pytest.mark.slow
def test_the_metric_decides_what_is_kept(planted, record):
    assert "keep in float for 20 dB: layers.3" in planted.text
    search = record["metric"]
    assert search["value"] < 0.1 and search["verdict"] == "failed"
    (built,) = search["tried"]
    assert built["verdict"] == "passed" and built["value"] > 0.9
    assert search["kept"] == built["kept"] == {"forward": ["layers.3"]}
    # Keeping all five modules in float would quantize nothing.
    assert (search["builds"], search["one_by_one"]) == (1, 4)
    # This proposal doesn't use the 20 dB of the config.
    assert record["methods"]["forward"]["floor_db"] is None


@pytest.mark.slow
def test_a_module_in_float_is_built_and_timed(planted):
    record = planted.first
    noisiest, *quieter = record["methods"]["forward"]["modules"]
    assert noisiest["in_float"]["bytes"] > 0 and not any("in_float" in row for row in quieter)
    spread = noisiest["in_float"]["ms"]
    assert spread["low"] <= spread["median"] <= spread["high"]
    assert 0 < record["methods"]["forward"]["base_ms"] < 100
    (line,) = (text for text in planted.text.splitlines() if "layers.3  " in text and "+" in text)
    assert f"{noisiest['in_float']['bytes']:+,}" in line


@pytest.mark.slow
def test_the_report_shows_what_was_measured(planted):
    modules = planted.report["sensitivity"]["methods"]["forward"]["modules"]
    assert modules == planted.first["methods"]["forward"]["modules"]
    (row,) = (line for line in planted.page.splitlines() if "| keep in float |" in line)
    assert "| `layers.3` |" in row and f"{modules[0]['in_float']['bytes']:+,}" in row


@pytest.mark.slow
def test_modules_go_to_the_backend_that_is_faster(planted):
    words = ("--against", "xnnpack", "--variants", "1", "--write", "--json")
    assert planted.doit("sensitivity", "plain", *words) == 0, planted.output
    (line,) = (line for line in planted.output.splitlines() if line.startswith("{"))
    printed = json.loads(line)
    validate("sensitivity", printed)
    method = printed["packages"][0]["against"]["methods"]["forward"]
    (group,) = method["groups"]
    layers = [f"layers.{number}" for number in range(5)]
    assert group["modules"] == method["proposed"] == layers and method["builds"] == 1
    assert group["ms"]["high"] < 0 and group["sqnr_db"] > 100
    text = (planted.root / "partition_configs" / "plain.yaml").read_text()
    item = f"{{xnnpack: {{modules: [{', '.join(layers)}]}}}}"
    assert text == PORTABLE.replace("[]", f"[{item}]")
    assert planted.doit("lower", "plain") == 0, planted.output
    assert planted.outcomes()["compile plain/forward"] == "hit"
    # After that move no delegate is left, which a build refuses unless a config allows it.
    words = ("--against", "portable", "--variants", "1", "--json")
    assert planted.doit("sensitivity", "plain", *words) == 0, planted.output
    (line,) = (line for line in planted.output.splitlines() if line.startswith("{"))
    method = json.loads(line)["packages"][0]["against"]["methods"]["forward"]
    (group,) = method["groups"]
    assert group["modules"] == layers and group["ms"]["low"] > 0
    assert method["proposed"] == []
    (kind,) = method["operators"]
    assert (kind["operator"], kind["count"]) == ("aten.linear.default", 5)
    assert kind["ms"]["low"] > 0
    assert method["untried"] == []  # a relu in the method's own forward is in no module


def test_a_proposal_goes_by_one_thing():
    with pytest.raises(PipelineError, match="--floor and --metric: choose one"):
        next(run(None, ["pair"], floor="9", metric="top1"))
    with pytest.raises(PipelineError, match=r"--against \[vulkan\]: must be portable"):
        next(run(None, ["pair"], against="[vulkan]"))
    with pytest.raises(PipelineError, match="--against vulkn: unknown partitioner 'vulkn'; did"):
        next(run(None, ["pair"], against="vulkn"))
    fault = r"--against vulkan: .*: vulkan.force_fp16: is 3, must be true or false"
    with pytest.raises(PipelineError, match=fault):
        next(run(None, ["pair"], against="vulkan: {force_fp16: 3}"))


def test_without_the_feature_that_edits_configs_nothing_is_measured(monkeypatch):
    features = [f for f in moments.find_features() if f.name != "config_edits"]
    monkeypatch.setattr(moments, "find_features", lambda: features)
    with pytest.raises(PipelineError, match='this installation has no feature "config_edits"'):
        next(run(None, ["pair"]))
