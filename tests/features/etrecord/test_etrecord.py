"""ETRecords of packages whose methods were compiled separately, compared with ExecuTorch's
ETRecords and read by ExecuTorch."""

import copy
import io
import json
import zipfile
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.exir import to_edge_transform_and_lower
from torch import nn
from torch.export import Dim, export

from pipeline.backends import QUANTIZERS
from pipeline.compile.emit import emit
from pipeline.compile.lower import lower
from pipeline.compile.objects import make_object
from pipeline.features.etrecord.etrecord import (
    _neutralize,
    join_etrecords,
    load_etrecord,
    map_current_lines,
    record_etrecord,
)
from pipeline.features.quantization.quantize import quantize
from pipeline.program.archive import load_program, save_programs
from pipeline.program.inputs import InputSet
from pipeline.program.runtime_bindings import import_bindings
from pipeline.store.errors import PipelineError
from pipeline.store.store import Store
from tests.support.linking import link

EDGE = "edge_dialect_exported_program"
PARTS = ("_state_dict", "_constants", "_example_inputs")
MAPS = ("debug_handle_map", "delegate_map", "instruction_id_to_num_outs_map")
THIS = Path(__file__)
ORDER = ("step", "features", "choose")  # not alphabetical


class Features(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Conv2d(3, 4, 3)
        self.second = nn.Linear(6, 5)

    def forward(self, x):
        return self.second(torch.relu(self.first(x)))  # from features


class Step(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.features = features
        self.register_buffer("count", torch.zeros(1))

    def forward(self, x):
        self.count.add_(1)
        return torch.softmax(self.features(x), -1) * self.count  # from step


class Choose(nn.Module):
    def forward(self, x):
        return torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), (x,))


@dataclass
class Made:
    """Programs, their package and ETRecord, and ExecuTorch's versions of both."""

    programs: dict
    pte: bytes
    record: bytes
    joint_pte: bytes
    joint_record: bytes


def partitioners():
    return {"features": [XnnpackPartitioner()], "step": [XnnpackPartitioner()], "choose": []}


def sources():
    features = Features().eval().requires_grad_(False)
    rows = ({0: Dim("rows", min=1, max=8)},)
    return {
        "step": export(Step(features), (torch.randn(1, 3, 8, 8),)),
        "features": export(features, (torch.randn(2, 3, 8, 8),), dynamic_shapes=rows),
        "choose": export(Choose(), (torch.randn(4),)),
    }


def quantized(program, folder):
    """Quantize a program and load it from an archive, as a compile action does."""
    spec = QUANTIZERS["xnnpack"].options(quantizer="xnnpack")
    found = quantize(program, spec, [InputSet((torch.randn(2, 3, 8, 8),))])
    with open(folder / "quantized.pt2", "wb") as file:
        save_programs({"forward": found}, file)
    return load_program(folder / "quantized.pt2", "forward")


def made_apart(programs, lines, store, etrecord=True):
    """Return the blobs of the package and of its record."""
    objects, records = [], []
    for name in ORDER:
        lowered = lower(
            {name: programs[name]}, {name: partitioners()[name]}, store=store, etrecord=etrecord
        )
        manager = emit(lowered)
        objects.append(make_object(manager, store, {}))
        records.append(record_etrecord(manager, store, lines) if etrecord else {})
    return link(objects, {}, store, ORDER).pte, join_etrecords(records, ORDER, store)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("etrecord")
    store = Store(folder / "store")
    own = sources()
    programs = {**own, "features": quantized(own["features"], folder)}
    lines = {"features": map_current_lines(programs["features"], own["features"])}
    pte, found = made_apart(copy.deepcopy(programs), lines, store)
    joint = to_edge_transform_and_lower(
        programs, partitioner=partitioners(), generate_etrecord=True
    ).to_executorch()
    file = io.BytesIO()
    joint.get_etrecord().save(file)
    return Made(
        programs, store.read(pte.digest), store.read(found.digest), joint.buffer, file.getvalue()
    )


@pytest.fixture
def path(made, tmp_path):
    (tmp_path / "etrecord.bin").write_bytes(made.record)
    return tmp_path / "etrecord.bin"


def entries(data):
    with zipfile.ZipFile(io.BytesIO(data)) as file:
        return {name: file.read(name) for name in file.namelist()}


@pytest.mark.slow
def test_the_package_stays_the_same(made, tmp_path):
    assert made.pte == made.joint_pte
    bare, _ = made_apart(copy.deepcopy(made.programs), {}, Store(tmp_path), etrecord=False)
    assert Store(tmp_path).read(bare.digest) == made.pte


@pytest.mark.slow
def test_it_holds_what_the_joint_calls_holds(made):
    ours, theirs = entries(made.record), entries(made.joint_record)
    assert sorted(ours) == sorted(theirs)  # it goes through a set of methods
    for name, content in theirs.items():
        if name in MAPS:
            assert ours[name] == content, name
        elif name.endswith(PARTS):
            assert same(ours[name], content), name
        elif name.startswith(EDGE):
            assert without_lines(ours[name]) == without_lines(content), name
    assert set(json.loads(ours["debug_handle_map"])) == set(ORDER)
    for method in ("step", "choose"):
        ours_neutral = json.loads(ours[f"{EDGE}/{method}"])
        assert ours_neutral == json.loads(_neutralize(theirs[f"{EDGE}/{method}"], None, None))


def without_lines(program):
    """Return a quantized program without its lines, which we add ourselves."""
    found = json.loads(_neutralize(program, None, None))
    for node in found["graph_module"]["graph"]["nodes"]:
        node["metadata"].pop("stack_trace", None)
    return found


def same(one, other):
    """Return whether two torch files have the same content."""
    if one == other:
        return True
    one, other = (torch.load(io.BytesIO(each), weights_only=False) for each in (one, other))
    if isinstance(one, dict):
        pairs = zip(one.values(), other.values(), strict=True)
        return list(one) == list(other) and all(torch.equal(a, b) for a, b in pairs)
    return str(one) == str(other)


@pytest.mark.slow
def test_nothing_in_it_is_of_this_machine_or_run(made, tmp_path):
    found = entries(made.record)
    text = b"".join(v for n, v in found.items() if not n.endswith(PARTS)).decode()
    assert str(THIS.parent) not in text and "site-packages" not in text
    with zipfile.ZipFile(io.BytesIO(made.record)) as file:
        assert {info.date_time for info in file.infolist()} == {(1980, 1, 1, 0, 0, 0)}
    again = sources()  # the graphs have other ids
    again["features"] = made.programs["features"]
    lines = {"features": map_current_lines(again["features"], sources()["features"])}
    store = Store(tmp_path)
    assert store.read(made_apart(again, lines, store)[1].digest) == made.record


def line_of(text):
    return next(n for n, line in enumerate(THIS.read_text().splitlines(), 1) if text in line)


def dump(handles):
    """Return the events that a device records in one run: a millisecond per instruction."""
    from executorch.devtools.etdump.schema_flatcc import ETDumpFlatCC, Event, ProfileEvent, RunData

    events = [
        ProfileEvent(
            name="DELEGATE_CALL" if isinstance(handle, list) else "OPERATOR_CALL",
            chain_index=0,
            instruction_id=int(instruction),
            delegate_debug_id_int=-1,
            delegate_debug_id_str="",
            delegate_debug_metadata=b"",
            start_time=int(instruction) * 10**6,
            end_time=(int(instruction) + 1) * 10**6,
        )
        for instruction, handle in handles.items()
    ]
    return ETDumpFlatCC(0, [RunData("run", -1, [], [Event(e, None, None) for e in events])])


@pytest.mark.slow
@pytest.mark.parametrize("method", ["features", "step"])
def test_the_inspector_tells_lines_and_modules_of_each_method(path, method, monkeypatch):
    from executorch.devtools.inspector import Inspector, _inspector

    whole = load_etrecord(path, method)
    handles = whole._debug_handle_map["forward"]
    # A dump made in Python lacks the size prefix that the runtime writes.
    monkeypatch.setattr(_inspector, "gen_etdump_object", lambda **_: dump(handles))
    (block,) = Inspector(etdump_data=b"dump", etrecord=whole).event_blocks
    assert "DELEGATE_CALL" in [event.name for event in block.events]
    lines = str([event.stack_traces for event in block.events])
    assert "# from features" in lines
    assert f'{THIS.parent.name}/{THIS.name}", line {line_of("# from features")}' in lines
    assert ("# from step" in lines) == (method == "step")
    assert "Conv2d" in str([event.module_hierarchy for event in block.events])


@pytest.mark.slow
def test_executorch_reads_all_methods(path):
    from executorch.devtools.etrecord import parse_etrecord

    whole = parse_etrecord(str(path))
    assert set(whole.edge_dialect_program) == set(ORDER)
    with pytest.raises(
        PipelineError, match="has no method 'decode'; it has choose, features, step"
    ):
        load_etrecord(path, "decode")


@pytest.mark.slow
def test_the_wheels_runtime_writes_no_dump(made, tmp_path):
    """If it did, `docs/reference/reports.md` should say so."""
    module = import_bindings()._load_for_executorch_from_buffer(made.pte, None, True, 1 << 20)
    module.run_method("choose", (torch.zeros(4),))
    module.write_etdump_result_to_file(str(tmp_path / "dump"), str(tmp_path / "buffer"))
    assert not (tmp_path / "dump").exists()


def test_lines_of_a_quantized_program_are_those_of_its_source_as_it_is():
    def program(*nodes):
        graph = SimpleNamespace(
            nodes=[SimpleNamespace(name=n, target=t, meta={"stack_trace": s}) for n, t, s in nodes]
        )
        module = SimpleNamespace(graph=graph)
        return module

    old = program(("conv", "conv2d", "line 3"), ("q", "quantize", "line 3"), ("relu", "relu", "4"))
    new = program(("conv", "conv2d", "line 5"), ("relu", "gelu", "6"))
    import pipeline.features.etrecord.etrecord as module

    original, module.iter_nodes = module.iter_nodes, lambda program: program.graph.nodes
    try:
        assert map_current_lines(old, new) == {"line 3": "line 5"}
    finally:
        module.iter_nodes = original


class Adds(nn.Module):
    def forward(self, x):
        return torch.cond(x.sum() > 0, lambda x: x.sin() + 1, lambda x: x - 2, (x,))


def test_what_executorch_cannot_write_is_told(tmp_path):
    program = export(Adds(), (torch.randn(4),))
    manager = emit(lower({"add": program}, {"add": []}, etrecord=True))
    with pytest.raises(
        PipelineError, match=r"^add: ExecuTorch can't write the program into an ETRe"
    ):
        record_etrecord(manager, Store(tmp_path), {})


@pytest.mark.parametrize("name", ["get_constants", "my_state_dict"])
def test_methods_that_executorch_would_not_read_back_are_refused(name):
    manager = SimpleNamespace(
        methods={name}, get_etrecord=lambda: SimpleNamespace(edge_dialect_program={})
    )
    with pytest.raises(PipelineError, match=f"^{name}: ExecuTorch reads no ETRecord of a method"):
        record_etrecord(manager, None, {})


@pytest.mark.slow
def test_a_build_leaves_it_beside_a_package_that_is_the_same(built):
    """If source lines changed, only packages with an ETRecord are compiled again."""
    bare = built.bytes_of("pair", "pair.pte")
    config = (built.root / "partition_configs/pair.yaml").read_text()
    traced = config + "emit: {etrecord: true}\n"
    (built.root / "partition_configs/traced.yaml").write_text(traced)
    assert built.doit("lower", timeout=900) == 0, built.output
    assert built.bytes_of("traced", "traced.pte") == bare
    before = built.bytes_of("traced", "etrecord.bin")
    manifest = json.loads(built.bytes_of("traced", "manifest.json"))
    assert manifest["etrecord"]["size"] == len(before)
    assert list(manifest["files"]) == ["traced.pte"]  # what a gate's max_size counts
    assert not (built.root / "build/pair/etrecord.bin").exists()
    assert set(json.loads(entries(before)["debug_handle_map"])) == {"encode", "decode"}

    (built.root / "build/traced/etrecord.bin").unlink()
    built.edit("models/pair.py", "import torch\n", "# A line.\nimport torch\n")
    assert built.doit("lower", timeout=900) == 0, built.output
    outcomes = built.outcomes()
    assert outcomes["compile traced/encode"] == outcomes["compile traced/decode"] == "built"
    assert outcomes["compile pair/encode"] != "built" and outcomes["compile pair/decode"] != "built"
    assert built.bytes_of("traced", "traced.pte") == bare
    text, old = (
        entries(each)[f"{EDGE}/encode"].decode()
        for each in (built.bytes_of("traced", "etrecord.bin"), before)
    )
    assert "models/pair.py" in old and str(built.root) not in old
    assert text != old and text.replace("line 22, in", "line 21, in") == old
