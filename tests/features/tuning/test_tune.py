"""`doit tune` in workspaces: variants are built once and compared, and the best one is written."""

import json
import os
import re
import signal
import subprocess
import time
from types import SimpleNamespace

import pytest

from pipeline import moments
from pipeline.features.tuning.verb import _find_trial, run
from pipeline.store.errors import PipelineError
from tests.features.native.boards import board_server  # noqa: F401
from tests.support.bench import Bench, bench_of

DODO = "from pte_pipeline.tasks import *\n"
MODEL = '''
"""A method with a large layer and one with a small one."""

import torch
from torch import nn
from torch.export import export


def batch(seed):
    return (torch.rand(2, 32, generator=torch.Generator().manual_seed(seed)),)


def export_methods():
    torch.manual_seed(0)
    large = nn.Sequential(nn.Linear(32, 96), nn.ReLU(), nn.Linear(96, 8)).eval()
    small = nn.Linear(32, 4).eval()
    modules = {"large": large, "small": small}
    return {n: export(m.requires_grad_(False), batch(0)) for n, m in modules.items()}


def example_inputs(method):
    return [batch(seed) for seed in range(1, 5)]


def calibration_inputs(method):
    return [batch(seed) for seed in range(10, 14)]
'''
CONFIG = """\
# The one of the phones.
model: tiny
methods:
  large: {partitioners: [xnnpack]}  # as it was
  small: {partitioners: []}
tune:
  space:
SPACE
  limits: {min_sqnr: 25, max_size: MOST}
validate: {inputs: 1, cases: [], latency: {seconds: 0}}
"""
SMALL = """\
    methods.large.partitioners: [[xnnpack], []]
    methods.large.quantize: [null, {quantizer: xnnpack, dynamic: true, per_channel: true}]"""
LARGE = """\
    methods.large.quantize:
      - null
      - {quantizer: xnnpack, dynamic: true, per_channel: true}
      - {quantizer: xnnpack, per_channel: true}
    methods.small.quantize: [null, {quantizer: xnnpack, dynamic: true, per_channel: true}]
    defaults.edge: [{}, {keep_ranges: true}]"""


def make_bench(root, space, most="15kB"):
    for folder in ("models", "partition_configs"):
        (root / folder).mkdir(parents=True)
    (root / "dodo.py").write_text(DODO)
    (root / "models" / "tiny.py").write_text(MODEL)
    config = CONFIG.replace("SPACE", space).replace("MOST", most)
    (root / "partition_configs" / "tiny.yaml").write_text(config)
    return Bench(root)


def record_of(bench, package="tiny"):
    return json.loads((bench.root / "build" / f"tune-{package}.json").read_text())


@pytest.mark.parametrize(
    ("words", "options", "fault"),
    [
        ([], {"trials": "many"}, "--trials is 'many', must be a whole number from 1"),
        ([], {"trials": "0"}, "--trials is '0', must be a whole number from 1"),
        ([], {"max_size": "10"}, "--max-size is '10', must be a size such as 10MB"),
        ([], {"write": "last"}, "--write is 'last', must be best or the number of a trial"),
        (["other"], {}, "no package 'other'; known: tiny"),
        ([], {}, "no config has a section `tune`; see `doit help tune`"),
        (["tiny"], {}, "tiny: its config has no section `tune`; write `tune: {space: "),
    ],
)
def test_words_without_meaning_are_refused(words, options, fault):
    config = SimpleNamespace(tune=None)
    configs = SimpleNamespace(config=lambda package: config)
    plan = SimpleNamespace(packages=["tiny"], configs=configs, check=lambda package: None)
    with pytest.raises(PipelineError) as error:
        list(run(plan, words, **options))
    assert str(error.value).startswith(fault)


@pytest.mark.parametrize(
    ("trials", "fault"),
    [((1, 2), "tiny: there is no trial 9; known: 1, 2"), ((9,), "tiny: trial 9 can't be: refused")],
)
def test_a_trial_without_a_package_is_not_written(trials, fault):
    made = [SimpleNamespace(number=number, name="", faults=("refused",)) for number in trials]
    search = SimpleNamespace(space=SimpleNamespace(package="tiny"), trials=made)
    with pytest.raises(PipelineError) as error:
        _find_trial(search, "9")
    assert str(error.value) == fault


def test_without_the_feature_that_edits_configs_nothing_is_tried(monkeypatch):
    features = [f for f in moments.find_features() if f.name != "config_edits"]
    monkeypatch.setattr(moments, "find_features", lambda: features)
    lack = '--write: this installation has no feature "config_edits"'
    with pytest.raises(PipelineError, match=lack):
        next(run(None, ["tiny"], write="best"))


SPACE_OF_ONE = """\
tune: # memory that the app brings, or the package
  space:
    emit.memory_planning:
      - null
      - {alloc_graph_input: false}
      - {alloc_graph_input: false, alloc_graph_output: false}
  objectives: {planned_memory: min, sqnr: max}
"""


@pytest.mark.slow
def test_variants_are_built_once_and_the_best_is_written(tmp_path):
    bench = bench_of("archives", tmp_path)
    path = bench.root / "partition_configs" / "one.yaml"
    path.write_text(path.read_text() + SPACE_OF_ONE)
    assert bench.doit("tune", "one", PTE_PIPELINE_JOBS="1") == 0, bench.output
    assert "6 methods compiled in" in bench.output
    record = record_of(bench, "one")
    assert [trial["present"] for trial in record["trials"]] == [True, False, False]
    sizes = [trial["figures"]["planned_memory"] for trial in record["trials"]]
    assert sizes == [64, 32, 0] and record["best"] == 3  # two tensors of six floats
    assert all(trial["figures"]["sqnr"] > 100 for trial in record["trials"])
    page = (bench.root / "build" / "tune-one.html").read_text()
    assert page.count("<circle") == 3 and "doit tune one --write best" in page

    # Another limit builds nothing: the trials have been lowered, and break it.
    tuned = path.read_text()
    path.write_text(tuned + "  limits: {max_size: 1B}\n")
    assert bench.doit("tune", "one", PTE_PIPELINE_JOBS="1") == 1
    assert "0 methods compiled in" in bench.output
    assert "\ntune: one: no trial meets all limits [" in bench.output
    path.write_text(tuned + "  limits: {max_planned_memory: 40B}\n")
    before = path.read_text()
    assert bench.doit("tune", "--write", "best", PTE_PIPELINE_JOBS="1") == 0, bench.output
    assert "0 methods compiled in" in bench.output
    faults = [trial["faults"] for trial in record_of(bench, "one")["trials"]]
    assert faults == [["planned_memory 64 B breaks max_planned_memory 40 B"], [], []]
    planning = "{alloc_graph_input: false, alloc_graph_output: false}"
    assert path.read_text() == f"{before}emit:\n  memory_planning: {planning}\n"


SPACE_OF_MANY = """\
target: phone
tune:
  space: {emit.memory_planning: [null, {alloc_graph_input: false}]}
  objectives: {size: min, sqnr: max}
"""


@pytest.mark.release
def test_memory_of_all_packages_of_a_target_holds_a_limit(tmp_path):
    bench = bench_of("archives", tmp_path)
    configs = bench.root / "partition_configs"
    one = (configs / "one.yaml").read_text()
    (configs / "one.yaml").write_text(one + "target: phone\n" + SPACE_OF_ONE)
    (configs / "many.yaml").write_text((configs / "many.yaml").read_text() + SPACE_OF_MANY)
    (configs / "fixed.yaml").write_text(one + "target: phone\n")
    (configs / "other.yaml").write_text(one + "target: watch\n")
    words = ("tune", "--target", "phone", "--max-memory", "150B")
    assert bench.doit(*words) != 0
    assert "fixed: has no figure planned_memory; run `doit validate:fixed` first" in bench.output
    assert bench.doit("validate:fixed") == 0, bench.output
    assert bench.doit(*words) == 0, bench.output
    (together,) = [line for line in bench.output.splitlines() if line.startswith("together")]
    sums = {}
    for package in ("one", "many"):
        figures = [t["figures"]["planned_memory"] for t in record_of(bench, package)["trials"]]
        sums[package] = (min(figures), max(figures))
    assert sum(high for _, high in sums.values()) + 64 > 150  # otherwise the limit does nothing
    chosen = re.findall(r"  \w+: trial .*planned_memory (\d+) B", bench.output)
    total = 64 + sum(map(int, chosen))  # the fixed package has two tensors of six floats
    assert len(chosen) == 2 and total <= 150
    assert together == f"together: planned_memory {total} B of at most 150 B"
    least = 64 + sum(int(low) for low, _ in sums.values())
    assert bench.doit(*words[:-1], f"{least - 1}B") != 0
    assert f"the minimum is planned_memory {least} B, at most {least - 1} B allowed" in bench.output


FAMILY = """\
    methods.large.quantize: [null, {quantizer: xnnpack, dynamic: true, per_channel: true}]"""


@pytest.mark.release
def test_a_family_is_as_large_as_it_was_said_to_be(tmp_path):
    """Two packages, and a third one without alternatives, contain the same weights. The sum over
    separately built trials counts these once, as do the files built afterwards."""
    bench = make_bench(tmp_path, FAMILY, "1MB")
    config = bench.root / "partition_configs" / "tiny.yaml"
    config.write_text(f"{config.read_text()}family: ours\ntarget: phone\n")
    text = config.read_text()
    (config.parent / "second.yaml").write_text(text)
    start, end = text.index("tune:"), text.index("validate:")
    (config.parent / "third.yaml").write_text(text[:start] + text[end:])
    assert bench.doit("validate:third") == 0, bench.output
    assert bench.doit("tune", "--target", "phone", "--max-size", "1MB") == 0, bench.output
    (said,) = re.findall(r"together: size ([\d.]+) kB of at most 1.0 MB\n", bench.output)
    (repeated,) = re.findall(r"([\d.]+) kB that packages of a family share", bench.output)
    assert bench.output.count("trial 1, size 20.4 kB") == 2  # unchanged: floats lose nothing
    assert bench.doit("lower") == 0, bench.output
    size, shared = 0, set()
    for package in ("second", "third", "tiny"):
        manifest = json.loads(bench.bytes_of(package, "manifest.json"))
        size += manifest["files"].pop(f"{package}.pte")["size"]
        shared |= {(file["digest"], file["size"]) for file in manifest["files"].values()}
    ((_, shared_size),) = shared
    size += shared_size
    assert float(said) * 1000 == pytest.approx(size, rel=0.05)
    assert float(repeated) * 1000 == pytest.approx(2 * shared_size, rel=0.05)


def table_of(bench):
    lines = bench.output.splitlines()
    return [line for line in lines if "compiled" not in line and " of " not in line]


@pytest.mark.release
@pytest.mark.parametrize(
    ("objective", "number", "executor"),
    [("sqnr", "4", ""), ("sqnr", "4", "dask"), ("delegated_ops", "8", "")],
)
def test_a_killed_search_goes_on_to_the_same_table(tmp_path, objective, number, executor):
    """Predictions come from the same figures; Optuna, used for delegation, suggests the same trials
    in the same order. A dask cluster gives the same table as worker processes."""
    pytest.importorskip("optuna")
    space = f"{LARGE}\n  objectives: {{size: min, {objective}: max}}"
    whole = make_bench(tmp_path / "whole", space, "1MB")
    words = ("tune", "--trials", number)
    assert whole.doit(*words, timeout=600) == 0, whole.output
    killed = make_bench(tmp_path / "killed", space, "1MB")
    process = subprocess.Popen(
        killed.command(*words),
        cwd=killed.root,
        env={**killed.environment, "PTE_PIPELINE_EXECUTOR": executor},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    line = ""
    while not re.search(r"[24] of at most \d trials", line):  # the first batch is done
        line = process.stdout.readline()
        assert line, "it ended too early"
    time.sleep(1)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert not (killed.root / "build" / "tune-tiny.json").exists()
    assert killed.doit(*words, timeout=600, PTE_PIPELINE_EXECUTOR=executor) == 0, killed.output
    assert table_of(killed) == table_of(whole)
    assert record_of(killed) == record_of(whole)


ON_BOARD = """\
    methods.large.partitioners: [[xnnpack], []]
  objectives: {latency_p95.pi5: min, size: min}"""


@pytest.mark.release
def test_the_fastest_on_a_board_of_the_target_is_found(server, tmp_path):
    """A real sshd on loopback with this machine's shell."""
    bench = make_bench(tmp_path / "workspace", ON_BOARD, "1MB")
    bench.edit("partition_configs/tiny.yaml", "model: tiny", "model: tiny\ntarget: pi")
    settings = f'[tool.pte-pipeline.native_boards]\npi5 = "{server.address}"\n'
    (bench.root / "pyproject.toml").write_text(settings)
    (bench.root / "targets").mkdir()
    path = f"{tmp_path / 'bin'}:{os.environ['PATH']}"
    assert bench.doit("tune", PATH=path) != 0
    assert "no validation runs on a device 'pi5'" in bench.output
    (bench.root / "targets" / "pi.yaml").write_text("devices: [pi5]\n")
    assert bench.doit("tune", PATH=path) == 0, bench.output
    times = [trial["figures"]["latency_p95.pi5"] for trial in record_of(bench)["trials"]]
    assert len(times) == 2 and _find_best(bench)["figures"]["latency_p95.pi5"] == min(times)
    server.stop()
    assert bench.doit("tune", PATH=path) == 0, bench.output  # the store has what the board said
    assert [trial["figures"]["latency_p95.pi5"] for trial in record_of(bench)["trials"]] == times


def _count_compiled(bench):
    (line,) = [line for line in bench.output.splitlines() if "methods compiled in" in line]
    return int(line.split()[0])


ONE_METHOD = """\
    methods.large.quantize:
      - null
      - {quantizer: xnnpack, dynamic: true, per_channel: true}
      - {quantizer: xnnpack, per_channel: true}
      - {quantizer: xnnpack, per_channel: false}
    methods.large.partitioners: [[xnnpack], [{xnnpack: {per_op_mode: true}}]]
    methods.large.edge: [null, {keep_ranges: true}]"""


@pytest.mark.release
def test_predictions_find_the_best_of_all_with_fewer_compilations(tmp_path):
    """Of 16 combinations, 4 are float and too large."""
    whole = make_bench(tmp_path / "whole", ONE_METHOD)
    # Static quantization has 18 dB on the held-out inputs, and 42 dB on those used for choosing.
    whole.edit("partition_configs/tiny.yaml", "min_sqnr: 25", "min_sqnr: 15")
    assert whole.doit("tune", "--all") == 0, whole.output
    search = make_bench(tmp_path / "search", ONE_METHOD)
    search.edit("partition_configs/tiny.yaml", "min_sqnr: 25", "min_sqnr: 15")
    assert search.doit("tune") == 0, search.output
    trials = record_of(whole)["trials"]
    assert len(trials) == 16
    faults = [trial["faults"] for trial in trials if trial["faults"]]
    assert len(faults) == 4 and all("breaks max_size 15.0 kB" in fault[0] for fault in faults)
    compiled = [_count_compiled(bench) for bench in (search, whole)]
    assert compiled[1] == 17 and compiled[0] <= 8, compiled  # `small` is one of them
    sizes = [_find_best(bench)["figures"]["size"] for bench in (search, whole)]
    assert sizes[0] <= 1.05 * sizes[1]
    record = record_of(search)
    assert len(record["trials"]) + len(record["predictions"]) == 16
    # A second search measures and builds nothing.
    assert search.doit("tune") == 0, search.output
    assert "0 methods compiled in" in search.output and record_of(search) == record


def _find_best(bench):
    record = record_of(bench)
    return next(trial for trial in record["trials"] if trial["trial"] == record["best"])
