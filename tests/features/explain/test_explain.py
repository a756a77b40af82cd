"""`doit plan` and `doit explain`: what is to do and why, down to the file, key, tensor, library."""

import json
import re
import shutil

import pytest
import torch

from pipeline.features.explain import explain
from pipeline.features.explain.explain import _describe_time
from pipeline.store.entries import ActionEntry
from tests.support.bench import bench_of
from tests.support.patches import python_path

EXPLAINED = [
    "export pair",
    "compile pair/encode",
    "compile pair/decode",
    "link pair",
    "validate pair",
]


def verdicts(output):
    """Return the verdict for each title in the output of `doit explain`."""
    told, _, _ = output.partition("where the time went:\n")
    lines = [line for line in told.splitlines() if line and not line.startswith(" ")]
    return dict(line.rsplit(": ", 1) for line in lines)


def test_built_workspace_is_current(built, monkeypatch):
    monkeypatch.setattr(explain, "_SHOWN", 0)  # small stages too
    assert built.doit("explain", "pair") == 0
    assert verdicts(built.output) == dict.fromkeys(EXPLAINED, "current")
    _, _, times = built.output.partition("where the time went:\n")
    slowest = re.findall(r"^  (\w+ [\w/]+) ([\d.]+) s", times, re.MULTILINE)
    assert {title for title, _ in slowest} == {*EXPLAINED} - {"link pair"}
    assert [float(each) for _, each in slowest] == sorted((float(e) for _, e in slowest))[::-1]
    entries = [json.loads(path.read_bytes()) for path in built.store.glob("actions/*/*.json")]
    steps = {"decompose", "to edge", "partition XnnpackBackend", "preprocess XnnpackBackend"}
    assert any(steps < entry.get("stages", {}).keys() for entry in entries)
    calls = {"source calls", "package calls", "loads"}
    assert any(calls < entry.get("stages", {}).keys() for entry in entries)
    assert " times its source calls, package calls and loads" in times
    assert built.doit("plan") == 0
    assert built.output == "5 current\n"


def test_without_names_the_last_run_is_explained(built):
    assert built.doit("explain") == 0
    chain, workers = built.output.splitlines()
    assert re.match("Longest chain: export pair .* s.*, compile pair/.* s.*, link pair .*", chain)
    assert re.match(r"\d workers?: idle for .* of it while an action was ready$", workers)
    (built.root / "build" / "timeline.json").unlink()
    assert built.doit("explain") == 1
    assert built.output.startswith("explain: no build/timeline.json of a run that did something")


@pytest.mark.parametrize(
    ("count", "remark"), [(0, ""), (1, "; observed 1 input"), (64, "; observed 64 inputs")]
)
def test_time_of_a_quantization_names_its_steps_and_inputs(count, remark):
    result = {"facts": {"calibration": {"inputs": count, "source": "files"}}}
    stages = {"quantize": 0.01, "observe": 90.04, "convert": 2.0}
    entry = ActionEntry({}, result, 92.05, stages=stages)
    assert _describe_time(entry) == f"92.0 s: observe 90.0 s, convert 2.0 s{remark}"


def test_fresh_workspace(tmp_path):
    bench = bench_of("pair", tmp_path)
    assert bench.doit("plan") == 0
    assert "export    pair         to do  not exported yet" in bench.output
    assert bench.output.endswith("1 to do, 4 wait\n")
    assert bench.doit("explain", "pair") == 0
    assert verdicts(bench.output)["export pair"] == "to do"
    assert verdicts(bench.output)["link pair"] == "waits"
    assert "; there is no earlier build of this package to compare with" in bench.output


def test_lost_store_is_told(built):
    shutil.rmtree(built.store)
    assert built.doit("explain", "pair") == 0
    assert "; the store no longer has the last build to compare with" in built.output


def test_fresh_checkout_with_a_warm_store(built):
    shutil.rmtree(built.root / "build")
    assert built.doit("plan") == 0
    assert "link      pair         in the store" in built.output
    assert built.output.endswith("1 current, 4 in the store\n")


def test_config_key_is_named(built):
    built.edit("partition_configs/pair.yaml", "[xnnpack]", "[{xnnpack: {per_op_mode: true}}]")
    assert built.doit("explain", "pair/decode") == 0
    assert built.output.partition("where")[0].splitlines() == [
        "export pair: current",
        "  its source and all it reads are unchanged",
        "compile pair/decode: to do",
        "  compared with the last build in this workspace:",
        "  - config methods.decode.partitioners[0].options.per_op_mode: False -> True",
    ]
    assert built.doit("plan", "pair") == 0
    assert built.output.endswith("2 current, 2 to do, 1 waits\n")


def test_file_is_named(built):
    (built.root / "models" / "_parts.py").write_text("SIZE = 8  # the same\n")
    assert built.doit("explain", "pair") == 0
    assert "  - models/_parts.py changed" in built.output.splitlines()


def test_changed_exporter_is_the_only_reason(built):
    """What its new content reads is unknown, so no differences in that are listed."""
    built.edit("models/pair.py", "- 1.0", "- 2.0")
    assert built.doit("explain", "pair") == 0
    shown = built.output.splitlines()
    assert shown[:3] == [
        "export pair: to do",
        "  models/pair.py changed",
        "compile pair/encode: waits",
    ]


@pytest.mark.slow
def test_tensor_and_module_are_named(built):
    built.edit("models/pair.py", "manual_seed(0)", "manual_seed(1)")
    built.edit("models/pair.py", "- 1.0", "- 2.0")
    assert built.doit("export") == 0
    assert built.doit("explain", "pair") == 0
    told = built.output.splitlines()
    assert "  - encode: tensor shared.weight.weight changed" in told
    assert "  - decode: tensor shared.weight.bias changed" in told
    assert "  - decode: operators of module at the top changed" in told
    assert "  - encode: operators of module at the top changed" not in told


@pytest.mark.parametrize("words", [["plan", "many"], ["explain", "many"]], ids=" ".join)
def test_tensor_of_a_new_archive_is_named_at_once(tmp_path, words):
    bench = bench_of("archives", tmp_path)
    assert bench.doit("lower:many") == 0
    archive = bench.root / "models" / "many" / "features.pt2"
    program = torch.export.load(archive)
    program.state_dict["factor"].mul_(2)
    torch.export.save(program, archive)
    assert bench.doit(*words) == 0
    assert "features: tensor factor changed" in bench.output
    assert "features: features:" not in bench.output


@pytest.mark.slow
def test_library_version_is_named(built):
    folder = built.root / "fake" / "flatbuffers-0.1.dist-info"
    folder.mkdir(parents=True)
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: flatbuffers\nVersion: 0.1\n")
    assert built.doit("explain", "pair", PYTHONPATH=python_path(folder.parent)) == 0
    lines = [line for line in built.output.splitlines() if "library flatbuffers" in line]
    assert lines and all("-> 0.1" in line for line in lines)
    assert verdicts(built.output)["export pair"] == "to do"


def test_nearest_one_of_the_store_is_compared_where_the_workspace_knows_none(built):
    built.edit("partition_configs/pair.yaml", "decode:", "decode: {partitioners: []}\n  #")
    config = built.root / "partition_configs" / "pair.yaml"
    config.write_text(config.read_text().replace("    partitioners: [xnnpack]\n", ""))
    shutil.rmtree(built.root / "build")
    assert built.doit("explain", "pair/decode") == 0
    assert "compared with the nearest one in the store:" in built.output
    assert "config methods.decode.partitioners: " in built.output


def test_planning_and_explaining_change_nothing_but_what_is_remembered(built):
    built.edit("partition_configs/pair.yaml", "[xnnpack]", "[]")
    before = built.snapshot()
    assert built.doit("plan") == built.doit("explain", "pair") == 0
    after = built.snapshot()
    allowed = {
        ".doit.sqlite3",
        ".files.json",
        ".archives.json",
        "__pycache__",
        "dodo.cpython-311.pyc",
    }
    changed = {path for path in before.keys() | after.keys() if before.get(path) != after.get(path)}
    assert {path.name for path in changed if not path.is_dir()} <= allowed


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["explain", "pear"],
            "explain: no package 'pear'; did you mean 'pair'? known: pair [PTE701]",
        ),
        (["explain", "pair/x"], "explain: pair: has no method 'x'; known: encode, decode [PTE706]"),
        (["plan", "pear"], "plan: no package 'pear'; did you mean 'pair'? known: pair [PTE701]"),
        (["cache", "clean"], "cache: no 'clean'; known: stats, gc, verify [PTE704]"),
    ],
    ids=" ".join,
)
def test_what_is_not_there_is_told(built, words, message):
    assert built.doit(*words) == 1
    assert built.output == f"{message}\n"


def test_faulty_config_is_told(built):
    built.edit("partition_configs/pair.yaml", "[xnnpack]", "[xnnpak]")
    assert built.doit("plan") == 1
    assert "faulty  partition_configs/pair.yaml:6: methods.decode.partitioners[0]" in built.output
    assert built.output.endswith("1 faulty\nplan: 1 package with mistakes: pair [PTE707]\n")
    assert built.doit("explain", "pair") == 1
    assert "unknown partitioner 'xnnpak'" in built.output


def test_equal_methods_of_two_packages_are_told(built):
    config = built.root / "partition_configs" / "pair.yaml"
    text = config.read_text().replace("[xnnpack]", "[{xnnpack: {per_op_mode: true}}]")
    config.write_text(text)
    (config.parent / "pair2.yaml").write_text(text)
    assert built.doit("plan") == 0
    assert "; the same as pair/decode" in built.output


@pytest.mark.slow
def test_cache_commands(built):
    assert built.doit("cache") == 0
    assert built.output.startswith(f"store {built.store}: ")
    rows = {line.split()[2]: line.split()[3:5] for line in built.output.splitlines()[5:]}
    assert rows["compile"] == ["0", "2"]
    assert rows["preprocess"] == ["0", "1"]
    assert built.doit("cache", "verify") == 0
    assert built.output.endswith(": all good\n")
    blob = next(path for path in (built.store / "blobs").rglob("*") if path.is_file())
    blob.chmod(0o644)
    blob.write_bytes(b"bad")
    assert built.doit("cache", "verify") == 1
    assert f"bad: {blob.relative_to(built.store)}; dropped" in built.output
    assert built.doit("cache", "gc", PTE_PIPELINE_STORE_SIZE="1B") == 0
    assert "0 B left of at most 1 B" in built.output
    assert built.doit("cache", "stats") == 0
    assert "0 blobs, 0 B" in built.output
    before = built.bytes_of("pair", "pair.pte")
    shutil.rmtree(built.root / "build")
    assert built.doit("lower") == 0
    assert built.bytes_of("pair", "pair.pte") == before


def test_reader_that_has_seen_enough_is_no_error(built):
    import subprocess

    command = " ".join(built.command("explain", "pair"))
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", f"{command} | head -1"],
        cwd=built.root, env=built.environment, capture_output=True, text=True,
    )  # fmt: skip
    assert done.stdout == "export pair: current\n"
    assert "Traceback" not in done.stderr
