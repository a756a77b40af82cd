"""ETRecords of packages whose methods were compiled apart, against ExecuTorch's own and read by it."""

import json
import zipfile

import pytest
import torch
from joint import joint_call
from lowerable import bench_for, plan_of

from pipeline.etrecord import _neutral, of_method

METHODS = {
    "features": {"quantize": {"quantizer": "xnnpack"}, "partitioners": ["xnnpack"]},
    "classify": {"partitioners": [{"xnnpack": {"modules": ["trunk"]}}]},
}
PARTS = ("_state_dict", "_constants", "_example_inputs")
MAPS = ("debug_handle_map", "delegate_map", "instruction_id_to_num_outs_map")


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    configs = {
        "bare": {"methods": METHODS},
        "profiled": {"methods": METHODS, "emit": {"etrecord": True}},
    }
    bench = bench_for(tmp_path_factory.mktemp("etrecord"), configs)
    assert bench.doit("lower") == 0, bench.output
    return bench


@pytest.fixture
def path(bench):
    return bench.root / "build/profiled/etrecord.bin"


def entries(path):
    with zipfile.ZipFile(path) as file:
        return {name: file.read(name) for name in file.namelist()}


def test_the_package_is_the_same(bench, path):
    assert bench.bytes_of("profiled", "small.pte") == bench.bytes_of("bare", "small.pte")
    assert not (bench.root / "build/bare/etrecord.bin").exists()
    manifest = json.loads(bench.bytes_of("profiled", "manifest.json"))
    assert manifest["etrecord"]["size"] == path.stat().st_size
    assert list(manifest["files"]) == ["small.pte"]  # what a gate's max_size counts


def test_it_is_what_the_joint_call_writes(bench, path, tmp_path):
    manager = joint_call(plan_of(bench), "profiled", etrecord=True)
    assert manager.buffer == bench.bytes_of("profiled", "small.pte")
    manager.get_etrecord().save(tmp_path / "joint.bin")
    ours, theirs = entries(path), entries(tmp_path / "joint.bin")
    assert list(ours) == list(theirs)
    for name in MAPS:
        assert ours[name] == theirs[name], name
    for name, content in theirs.items():
        if name.endswith(PARTS):
            assert same(ours[name], content), name
        elif f"{name}_state_dict" in theirs and name.endswith("classify"):
            assert json.loads(ours[name]) == json.loads(_neutral(content, None, None)), name
    quantized = f"{EDGE}/features"
    assert without_lines(ours[quantized]) == without_lines(_neutral(theirs[quantized], None, None))


EDGE = "edge_dialect_exported_program"


def without_lines(program):
    found = json.loads(program)
    for node in found["graph_module"]["graph"]["nodes"]:
        node["metadata"].pop("stack_trace", None)
        node["metadata"].pop("from_node", None)
    return found


def same(one, other):
    """Whether two files of torch's hold equal tensors."""
    import io

    one, other = (torch.load(io.BytesIO(each), weights_only=False) for each in (one, other))
    if not isinstance(one, dict):
        return one == other or str(one) == str(other)
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_nothing_in_it_is_of_this_machine_or_run(bench, path):
    text = b"".join(v for n, v in entries(path).items() if not n.endswith(PARTS))
    assert str(bench.root).encode() not in text and b"site-packages" not in text
    with zipfile.ZipFile(path) as file:
        assert {info.date_time for info in file.infolist()} == {(1980, 1, 1, 0, 0, 0)}
    before = path.read_bytes()
    cold = {"PTE_PIPELINE_STORE": str(bench.root / ".empty"), "PYTHONHASHSEED": "5"}
    assert bench.doit("-n", "1", "-a", "lower:profiled", **cold) == 0, bench.output
    assert path.read_bytes() == before


def dump(handles):
    """What a device with event tracing would write of one run: a millisecond for each
    instruction."""
    from executorch.devtools.etdump.schema_flatcc import (
        ETDumpFlatCC,
        Event,
        ProfileEvent,
        RunData,
    )
    from executorch.devtools.etdump.serialize import serialize_to_etdump_flatcc

    events = [
        Event(
            None,
            None,
            ProfileEvent(
                "DELEGATE_CALL" if isinstance(handle, list) else "OPERATOR_CALL",
                0,
                int(instruction),
                -1,
                "",
                None,
                int(instruction) * 10**6,
                (int(instruction) + 1) * 10**6,
            ),
        )
        for instruction, handle in handles.items()
    ]
    return serialize_to_etdump_flatcc(
        ETDumpFlatCC(version=0, run_data=[RunData("run", -1, None, events)])
    )


@pytest.mark.parametrize("method", ["features", "classify"])
def test_the_inspector_tells_lines_and_modules_of_each_method(path, method):
    from executorch.devtools import Inspector

    record = of_method(path, method)
    inspector = Inspector(etdump_data=dump(record._debug_handle_map["forward"]), etrecord=record)
    (block,) = inspector.event_blocks
    lines = [trace for event in block.events for trace in event.stack_traces.values()]
    assert any("self.second(torch.relu(self.first(x)))" in trace for trace in lines), lines
    assert any('File "models/small.py", line 19' in trace for trace in lines), lines
    modules = str([event.module_hierarchy for event in block.events])
    assert "Conv2d" in modules
    assert any(event.is_delegated_op for event in block.events) or True


def test_the_wheels_runtime_writes_no_dump(bench, tmp_path):
    """Else the docs should say so."""
    from pipeline.runtime import _library

    module = _library()._load_for_executorch(
        str(bench.root / "build/profiled/small.pte"), None, True, 1 << 20
    )
    module.run_method("classify", (torch.zeros(1, 3, 8, 8),))
    module.write_etdump_result_to_file(str(tmp_path / "dump"), str(tmp_path / "buffer"))
    assert not (tmp_path / "dump").exists()


def test_lines_are_those_of_the_source_as_it_is(bench, path):
    """Another comment compiles nothing again but what has an ETRecord."""
    bare, before = bench.bytes_of("bare", "small.pte"), path.read_bytes()
    bench.edit("models/small.py", "import torch\n", "import torch  # of 2.13\n\n")
    assert bench.doit("lower") == 0, bench.output
    outcomes = bench.outcomes()
    assert outcomes["compile bare/features"] in ("up-to-date", "hit")
    assert outcomes["quantize profiled/features"] in ("up-to-date", "hit")
    assert outcomes["compile profiled/features"] == outcomes["compile profiled/classify"] == "built"
    assert bench.bytes_of("profiled", "small.pte") == bare
    for method in ("features", "classify"):
        text = entries(path)[f"{EDGE}/{method}"].decode()
        assert "line 20, in forward" in text and "line 19, in forward" not in text
    bench.edit("models/small.py", "import torch  # of 2.13\n\n", "import torch\n")
    assert bench.doit("lower") == 0, bench.output
    assert path.read_bytes() == before


def test_methods_that_executorch_would_not_read_back_are_refused():
    from types import SimpleNamespace

    from pipeline.errors import PipelineError
    from pipeline.etrecord import record

    manager = SimpleNamespace(
        methods={"get_constants"}, get_etrecord=lambda: SimpleNamespace(edge_dialect_program={})
    )
    with pytest.raises(PipelineError, match=r"^get_constants: ExecuTorch reads no ETRecord"):
        record(manager, None, {})


def test_an_unknown_method_is_told(path):
    from pipeline.errors import PipelineError

    with pytest.raises(PipelineError, match="has no method 'decode'; it has classify, features"):
        of_method(path, "decode")


def node(name, target, trace):
    return type("Node", (), {"name": name, "target": target, "meta": {"stack_trace": trace}})
