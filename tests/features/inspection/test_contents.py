"""The contents of a package, compared with ExecuTorch's readers and with what went in."""

import json
import shutil
from functools import cache
from pathlib import Path

import pytest
import torch
import yaml
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.codegen.tools import gen_all_oplist, gen_oplist, gen_selected_op_variants
from executorch.exir._serialize._cord import Cord
from executorch.exir._serialize._flatbuffer_program import _program_to_flatbuffer
from executorch.exir._serialize._program import deserialize_pte_binary
from executorch.exir.backend.partitioner import DelegationSpec, Partitioner, PartitionResult
from executorch.exir.backend.utils import tag_constant_data
from executorch.extension.flat_tensor.serialize.serialize import FlatTensorSerializer
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.export import export

from pipeline.compile.preprocess import registry as preprocessors
from pipeline.features.contracts.contract import describe_contract, format_selection, join_contracts
from pipeline.features.contracts.kernel_calls import (
    read_kernel_calls,
    read_memory_alignment,
    read_schema,
)
from pipeline.features.inspection.contents import describe_contents
from pipeline.features.quantization.quantize import quantize
from pipeline.program.flatbuffer import CorruptError
from pipeline.program.inputs import InputSet
from pipeline.program.pte import read_program
from pipeline.store.digest import hash_bytes
from pipeline.store.errors import PipelineError
from pipeline.store.files import record_bytes
from pipeline.store.store import Store
from tests.support import functions
from tests.support.bench import DATA
from tests.support.configs import parse_config
from tests.support.functions import BACKEND_ID
from tests.support.packed import compiled, linked, pack
from tests.support.programs import shared_programs

GOLDEN = DATA / "contents.json"


class Image(torch.nn.Module):
    """Convolutions of all kinds, a batch norm that XNNPACK folds, and a private constant."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.stem = torch.nn.Conv2d(3, 8, 3, bias=False)
        self.norm = torch.nn.BatchNorm2d(8)
        self.depthwise = torch.nn.Conv2d(8, 8, 3, groups=8)
        self.head = torch.nn.Linear(8, 16)
        self.register_buffer("offset", torch.arange(16.0))
        with torch.no_grad():  # no two are equal
            for number, tensor in enumerate(self.norm.state_dict().values()):
                if tensor.ndim:
                    tensor.copy_(torch.linspace(0.5, 1.5, 8) + number)

    def forward(self, x):
        x = torch.relu(self.depthwise(self.norm(self.stem(x))))
        return self.head(x.mean((2, 3))) + self.offset


def image():
    return export(Image().eval().requires_grad_(False), (torch.ones(1, 3, 8, 8),))


class Everything(Partitioner):
    """A partitioner that puts all operators into one partition, together with their weights."""

    def partition(self, exported_program):
        for node in exported_program.graph.nodes:
            if node.op == "call_function":
                node.meta["delegation_tag"] = "all"
        tag_constant_data(exported_program)
        return PartitionResult(exported_program, {"all": DelegationSpec(BACKEND_ID, [])})


PARTS = {
    "portable": list,
    "xnnpack": lambda: [XnnpackPartitioner()],
    "text": lambda: [Everything()],
}
MIXED = {"step": "xnnpack", "plain": "xnnpack", "branch": "portable"}
PORTABLE = dict.fromkeys(MIXED, "portable")
OUTSIDE = {"external_constants": True, "initialized_buffers": ("count",)}
FILES = {"external_files": {"one": ("shared.first.*",), "other": ("shared.second.*",)}}
# For each name: the backend of each method of `shared_programs`, and how they are emitted and laid
# out.
PACKAGES = {
    "portable": (PORTABLE, {}, {}),
    "mixed": (MIXED, {}, {}),
    "external": (MIXED, OUTSIDE, {}),
    "files": ({"step": "portable", "plain": "portable"}, FILES, {}),
    "inline": (MIXED, {}, {"extract_delegate_segments": False}),
    "aligned": (MIXED, {}, {"constant_tensor_alignment": 256, "segment_alignment": 4096}),
    "backends": ({"step": "xnnpack", "plain": "text"}, {}, {}),
}


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    """Return a function that builds a package once per name, and compiles no method twice."""
    store = Store(tmp_path_factory.mktemp("packages") / "store")
    programs = shared_programs()
    objects = {}

    def method(name, backend, options):
        key = name, backend, json.dumps(options)
        if key not in objects:
            parts = PARTS[backend]()
            objects[key] = compiled(store, name, programs[name], parts, **options)
        return objects[key]

    @cache
    def made(name):
        backends, options, layout = PACKAGES[name]
        with pytest.MonkeyPatch.context() as patch:
            patch.setitem(preprocessors.REGISTERED, BACKEND_ID, functions.preprocess)
            methods = {n: method(n, backend, options) for n, backend in backends.items()}
        return linked(store, methods, {"get_length": 128}, layout)

    return made


def check_cover(contents, files):
    """Check that the segments of each file cover it without gaps or overlaps."""
    for name, path in files.items():
        data, end = path.read_bytes(), 0
        for segment in contents["segments"]:
            if segment["file"] != name:
                continue
            assert segment["offset"] == end and segment["size"] > 0
            end += segment["size"]
            content = data[segment["offset"] : end]
            if segment["kind"] == "padding":
                assert segment["digest"] == "" and (segment["name"] or not content.strip(b"\0"))
            else:
                assert segment["digest"] == hash_bytes(content)
        assert end == len(data)
    assert contents["size"] == sum(path.stat().st_size for path in files.values())
    assert contents["size"] == sum(segment["size"] for segment in contents["segments"])


def tensor(contents, name, **where):
    found = [
        each
        for each in contents["tensors"]
        if name in each["name"].split(", ") and where.items() <= each.items()
    ]
    assert len(found) == 1, found
    return found[0]


@pytest.mark.parametrize("name", PACKAGES)
def test_segments_cover_the_files_to_the_byte(package, name):
    made = package(name)
    contents = made.contents()
    check_cover(contents, made.files)
    assert not [s for s in contents["segments"] if s["kind"] == "padding" and s["name"]]


@pytest.mark.parametrize("name", PACKAGES)
def test_methods_are_those_that_executorch_reads(package, name):
    made = package(name)
    methods = made.contents()["methods"]
    file = deserialize_pte_binary(made.files["model.pte"].read_bytes())
    plans = {plan.name: plan for plan in file.program.execution_plan}
    assert methods.keys() == plans.keys()
    for method, plan in plans.items():
        told = methods[method]
        assert told["instructions"] == len(plan.chains[0].instructions)
        arenas = {each["arena"]: each["size"] for each in told["planned_memory"]}
        assert arenas == dict(enumerate(plan.non_const_buffer_sizes[1:], 1))
        payloads = [
            file.program.backend_delegate_data[each.processed.index].data for each in plan.delegates
        ]
        assert told["delegates"] == [
            {"backend": d.id, "index": n, "size": len(p), "digest": hash_bytes(bytes(p))}
            for n, (d, p) in enumerate(zip(plan.delegates, payloads, strict=True))
        ]


@pytest.mark.parametrize("name", PACKAGES)
def test_every_weight_is_named_and_of_its_type(package, name):
    """The module's weights come back by name, wherever they are stored."""
    contents = package(name).contents()
    state = shared_programs()["step"].state_dict
    for key in ("shared.first.weight", "shared.second.weight", "shared.first.bias"):
        assert key in state
        found = [t for t in contents["tensors"] if t["name"] == key]
        assert found
        for each in found:
            assert (each["dtype"], each["shape"]) == ("float32", list(state[key].shape))
            assert each["size"] == state[key].nbytes
    sizes = [each["size"] for each in contents["tensors"]]
    assert sizes == sorted(sizes, reverse=True)


def test_portable_methods_share_their_constants(package):
    contents = package("portable").contents()
    assert tensor(contents, "shared.first.weight")["methods"] == ["plain", "step"]
    assert tensor(contents, "shared.second.weight")["methods"] == ["branch", "step"]
    shared = {each["what"]: each["methods"] for each in contents["shared"]}
    assert shared["shared.first.weight float32[8, 8]"] == ["plain", "step"]
    assert contents["twice"] == []
    (segment,) = [s for s in contents["segments"] if s["kind"] == "constants"]
    assert segment["methods"] == ["branch", "plain", "step"]
    state = shared_programs()["plain"].state_dict
    # ExecuTorch also stores buffers that a method doesn't read.
    names = ("first.weight", "first.bias", "offset", "cache", "count")
    own = [state[f"shared.{name}"].nbytes for name in names]
    assert contents["methods"]["plain"]["constants"] == sum(own)
    assert contents["methods"]["plain"]["delegated"] == 0


def test_delegates_share_named_data(package):
    contents = package("external").contents()
    weight = tensor(contents, "shared.first.weight", where="named_data")
    assert weight["methods"] == ["plain", "step"] and len(weight["key"]) == 64
    (segment,) = [s for s in contents["segments"] if s["name"] == "shared.first.weight"]
    assert (segment["kind"], segment["methods"]) == ("named_data", ["plain", "step"])
    count = tensor(contents, "shared.count", where="mutable")
    assert (count["dtype"], count["shape"], count["methods"]) == ("int64", [1], ["step"])
    payloads = {d["digest"] for m in contents["methods"].values() for d in m["delegates"]}
    kinds = {s["digest"]: s for s in contents["segments"] if s["kind"] == "delegate"}
    assert payloads == kinds.keys()
    assert {s["backend"] for s in kinds.values()} == {"XnnpackBackend"}


def test_what_two_methods_store_apart_is_told_with_advice(package):
    contents = package("mixed").contents()
    (twice,) = [t for t in contents["twice"] if "second.weight" in t["what"]]
    assert twice == {
        "what": "shared.second.weight float32[8, 8]",
        "size": 256,
        "times": 2,
        "where": ["model.pte: constants (branch)", "model.pte: named data (step)"],
        "advice": "portable operators and a delegate each keep a copy; lower all operators that "
        "use it to the same backend to store it once",
    }
    file = package("mixed").files["model.pte"].read_bytes()
    matrix = shared_programs()["step"].state_dict["shared.second.weight"].numpy().tobytes()
    assert file.count(matrix) == 2


def test_data_files_are_told_by_key(package):
    made = package("external")
    contents = made.contents()
    (name,) = [each for each in made.files if each.endswith(".ptd")]
    payload = FlatTensorSerializer().deserialize(Cord(made.files[name].read_bytes()))
    found = {t["key"]: t for t in contents["tensors"] if t["file"] == name}
    assert found.keys() == payload.named_data.keys()
    for key, entry in payload.named_data.items():
        assert found[key]["shape"] == list(entry.tensor_layout.sizes)
        assert found[key]["size"] == len(payload.buffers[entry.buffer_index])
    assert found["shared.offset"]["methods"] == ["branch", "plain", "step"]
    (twice,) = [t for t in contents["twice"] if "second.weight" in t["what"]]
    assert {where.partition(":")[0] for where in twice["where"]} == {name, "model.pte"}


def test_several_data_files(package):
    contents = package("files").contents()
    assert tensor(contents, "shared.first.weight")["file"] == "one.ptd"
    assert tensor(contents, "shared.second.weight")["file"] == "other.ptd"
    assert {s["file"] for s in contents["segments"]} == {"model.pte", "one.ptd", "other.ptd"}
    assert contents["methods"]["plain"]["constants"] >= 256


def test_payloads_in_the_flatbuffer_are_told_apart_from_it(package):
    inline, apart = package("inline").contents(), package("mixed").contents()
    kinds = [s["kind"] for s in inline["segments"] if s["file"] == "model.pte"]
    assert kinds[:5] == ["program", "delegate", "program", "delegate", "program"]

    def payloads(contents):
        own = [s for s in contents["segments"] if s["kind"] == "delegate"]
        return sorted((s["digest"], s["backend"], *s["methods"]) for s in own)

    assert payloads(inline) == payloads(apart)


def test_a_backend_that_keeps_weights_in_its_payloads(package):
    """None of the weight's bytes can be found there; only that the weight went in is known."""
    contents = package("backends").contents()
    inside = tensor(contents, "shared.first.weight", where="delegate")
    assert (inside["methods"], inside["shape"]) == (["plain"], [8, 8])
    assert tensor(contents, "shared.first.weight", where="named_data")["methods"] == ["step"]
    backends = {s["backend"] for s in contents["segments"] if s["kind"] == "delegate"}
    assert backends == {"XnnpackBackend", BACKEND_ID}


def test_weights_in_two_payloads_are_stored_twice(tmp_path, monkeypatch):
    monkeypatch.setitem(preprocessors.REGISTERED, BACKEND_ID, functions.preprocess)
    two = functions.Two().eval().requires_grad_(False)
    programs = {
        "both": export(two, (torch.ones(2, 4),)),
        "one": export(two.first, (torch.ones(2, 4),)),
    }
    contents = pack(tmp_path, programs, {n: [Everything()] for n in programs}).contents()
    (twice,) = contents["twice"]
    assert (twice["times"], twice["size"]) == (2, 64)
    assert twice["what"] == "first.weight float32[4, 4]"
    assert twice["where"] == ["delegate 0 of both (TextBackend)", "delegate 0 of one (TextBackend)"]
    assert "TextBackend keeps its own weights" in twice["advice"]


def test_weights_that_xnnpack_lays_out_anew_keep_their_names(tmp_path):
    """Channels last, depthwise, and with a batch norm folded in."""
    contents = pack(tmp_path, {"forward": image()}, {"forward": PARTS["xnnpack"]()}).contents()
    for name, shape in (
        ("stem.weight", [8, 3, 3, 3]),
        ("stem.bias", [8]),  # from the batch norm, for a convolution without one
        ("depthwise.weight", [8, 1, 3, 3]),
        ("head.weight", [16, 8]),
    ):
        found = tensor(contents, name)
        assert (found["where"], found["shape"]) == ("named_data", shape)
    assert tensor(contents, "offset")["where"] == "constants"
    assert all(each["name"] for each in contents["tensors"] if each["size"] >= 32)


class Sound(torch.nn.Module):
    """Convolutions over time: plain, depthwise, followed by a batch norm, and transposed ones in
    two groups, one of them two-dimensional."""

    def __init__(self):
        super().__init__()
        self.stem = torch.nn.Conv1d(3, 8, 5)
        self.depthwise = torch.nn.Conv1d(8, 8, 3, groups=8)
        self.normed = torch.nn.Conv1d(8, 12, 3)
        self.norm = torch.nn.BatchNorm1d(12)
        self.up = torch.nn.ConvTranspose1d(12, 10, 3, groups=2)
        self.plane = torch.nn.ConvTranspose2d(10, 6, 3, groups=2)
        self.whole = torch.nn.ConvTranspose2d(6, 5, 3)

    def forward(self, x):
        x = self.norm(self.normed(self.depthwise(self.stem(x))))
        return self.whole(self.plane(self.up(x).unsqueeze(-1)))


def test_weights_of_convolutions_in_time_and_transposed_ones_are_named(tmp_path):
    torch.manual_seed(1)
    program = export(Sound().eval().requires_grad_(False), (torch.ones(1, 3, 20),))
    contents = pack(tmp_path, {"forward": program}, {"forward": PARTS["xnnpack"]()}).contents()
    weights = ("stem", "depthwise", "normed", "up", "plane", "whole")
    assert {f"{name}.weight" for name in weights} <= {t["name"] for t in contents["tensors"]}
    assert all(each["name"] for each in contents["tensors"] if each["size"] >= 32)


def quantized(program, inputs, **options):
    data = {"methods": {"forward": {"partitioners": ["xnnpack"], "quantize": options}}}
    config = parse_config("p", {"model": "m", **data}, "p.yaml")
    sets = [InputSet(inputs, {}, "example")]
    return quantize(program, config.methods["forward"].quantize, sets)


@pytest.mark.slow
def test_quantized_weights_bear_the_name_of_their_module(tmp_path):
    program = quantized(image(), (torch.ones(1, 3, 8, 8),), quantizer="xnnpack")
    contents = pack(tmp_path, {"forward": program}, {"forward": PARTS["xnnpack"]()}).contents()
    for name, shape in (("stem.weight", [8, 3, 3, 3]), ("head.weight", [16, 8])):
        found = tensor(contents, name, dtype="int8")
        assert (found["shape"], found["where"]) == (shape, "named_data")
    assert tensor(contents, "head.weight.scales")["dtype"] == "float32"
    assert tensor(contents, "add.other")["shape"] == [16]
    assert not [t for t in contents["tensors"] if "frozen" in t["name"]]


def test_weights_of_four_bits_are_named(tmp_path):
    torch.manual_seed(0)
    linear = torch.nn.Sequential(torch.nn.Linear(64, 16)).eval().requires_grad_(False)
    inputs = (torch.ones(2, 64),)
    scheme = "int8_dynamic_activation_int4_weight"
    program = quantized(export(linear, inputs), inputs, quantizer="torchao", scheme=scheme)
    contents = pack(tmp_path, {"forward": program}, {"forward": PARTS["xnnpack"]()}).contents()
    largest = contents["tensors"][0]
    assert (largest["where"], largest["size"]) == ("named_data", 64 * 16 // 2)
    assert largest["name"].startswith("0") and "original" not in largest["name"]
    assert (largest["dtype"], largest["shape"]) == ("int8", [16, 64])


def test_without_what_compile_knows_everything_but_names_is_told(package):
    """Applies to a package that another tool made."""
    made = package("external")
    contents = describe_contents(made.files)
    check_cover(contents, made.files)
    assert contents["methods"].keys() == made.contents()["methods"].keys()
    named = [t for t in contents["tensors"] if t["where"] == "named_data"]
    in_data = [t for t in named if t["file"].endswith(".ptd")]  # plans refer to them by name
    assert in_data and all(t["name"] == t["key"] and t["methods"] for t in in_data)
    others = [t for t in named if t not in in_data]
    assert others and not any(t["name"] or t["methods"] for t in others)


def test_equal_packages_have_equal_contents(tmp_path):
    made = [
        pack(tmp_path / name, {"forward": image()}, {"forward": PARTS["xnnpack"]()}).contents()
        for name in "ab"
    ]
    assert record_bytes(made[0]) == record_bytes(made[1])


def test_the_record_of_a_small_package(package):
    """The whole record, without digests of flatbuffers, whose bytes depend on the library."""
    record = json.loads(record_bytes(package("external").contents()))
    for segment in record["segments"]:
        if segment["kind"] in ("program", "delegate"):
            segment["digest"] = ""
    for method in record["methods"].values():
        for delegate in method["delegates"]:
            delegate["digest"] = ""
    assert record == json.loads(GOLDEN.read_bytes())


# Damaged files


@pytest.fixture
def damaged(package, tmp_path):
    """Return copies of a package's files, and a function that changes one."""
    made = package("external")
    files = {name: Path(shutil.copy(path, tmp_path / name)) for name, path in made.files.items()}

    def change(name, edit):
        files[name].chmod(0o644)
        files[name].write_bytes(edit(files[name].read_bytes()))
        return files

    return change


PTD = "_default_external_constant.ptd"
DAMAGE = {
    "empty": ("model.pte", lambda data: b"", "it is empty"),
    "no program": ("model.pte", lambda data: b"not a package", "not an ExecuTorch program"),
    "cut short": ("model.pte", lambda data: data[:-500], "a segment beyond its end"),
    "in the flatbuffer": ("model.pte", lambda data: data[:64], "header contradicts its size"),
    "offset": ("model.pte", lambda data: b"\xff\xff\xff\x7f" + data[4:], "beyond its end"),
    "empty data": (PTD, lambda data: b"", "it is empty"),
    "no data": (PTD, lambda data: bytes(100), "not an ExecuTorch data file"),
    "data cut short": (PTD, lambda data: data[:-100], "a segment beyond its end"),
    "header of data": (
        PTD,
        lambda data: data[:8] + bytes(40) + data[48:],
        "has no readable header",
    ),
}


@pytest.mark.parametrize(("name", "edit", "why"), DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_file_is_told_in_one_line(damaged, name, edit, why):
    with pytest.raises(PipelineError, match=f"^{name}: is corrupt: .*{why}") as raised:
        describe_contents(damaged(name, edit))
    assert len(str(raised.value).splitlines()) == 1


def test_a_file_that_is_not_there(package):
    files = package("external").files | {"model.pte": Path("nowhere.pte")}
    with pytest.raises(PipelineError, match=r"^model.pte: cannot be read: No such file"):
        describe_contents(files)


def test_a_package_has_one_program(package):
    files = package("files").files
    with pytest.raises(PipelineError, match=r"one .pte, this one has 0"):
        describe_contents({name: path for name, path in files.items() if name.endswith(".ptd")})
    with pytest.raises(PipelineError, match=r"one .pte, this one has 2"):
        describe_contents(files | {"b.pte": files["model.pte"]})


def test_bytes_that_nothing_refers_to_are_told(damaged, package):
    files = damaged("model.pte", lambda data: data + b"left over")
    contents = describe_contents(files)
    check_cover(contents, files)
    last = [s for s in contents["segments"] if s["file"] == "model.pte"][-1]
    assert (last["kind"], last["name"], last["size"]) == ("padding", "unused", 9)


@settings(
    max_examples=100,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(data=st.data())
def test_whatever_is_changed_it_is_covered_or_refused(package, tmp_path, data):
    made = package("external")
    name = data.draw(st.sampled_from(sorted(made.files)))
    content = bytearray(made.files[name].read_bytes())
    reach = data.draw(st.sampled_from([64, len(content)]))  # headers are small
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, reach - 1))
        content[place] = data.draw(st.integers(0, 255))
    cut = data.draw(st.one_of(st.just(len(content)), st.integers(0, len(content))))
    path = tmp_path / name
    path.write_bytes(content[:cut])
    files = made.files | {name: path}
    try:
        contents = describe_contents(files, made.constants, made.keys)
    except PipelineError as error:
        assert len(str(error).splitlines()) == 1
    else:
        check_cover(contents, files)


# In a build


def test_a_build_leaves_the_contents_beside_the_manifest(built):
    folder = built.root / "build" / "pair"
    contents = json.loads((folder / "contents.json").read_bytes())
    files = {"pair.pte": folder / "pair.pte"}
    check_cover(contents, files)
    (weight,) = [t for t in contents["twice"] if "shared.weight.weight" in t["what"]]
    assert weight["where"] == ["pair.pte: constants (encode)", "pair.pte: named data (decode)"]
    (folder / "contents.json").write_text("{}")
    assert built.doit() == 0
    assert built.outcomes()["link pair"] == "hit"
    assert json.loads((folder / "contents.json").read_bytes()) == contents


def contract_of(files, name="pack"):
    return describe_contract(name, files, "1.4.1")


def pte_of(files):
    return next(path for name, path in files.items() if name.endswith(".pte"))


def selection_of(path):
    """Return the operators that a file selects, without names of packages or files."""
    found = yaml.safe_load(path.read_bytes())
    for operator in found["operators"].values():
        del operator["debug_info"]
    return found


@pytest.mark.parametrize("name", PACKAGES)
def test_a_selection_is_what_gen_oplist_writes(package, name, tmp_path):
    files = package(name).files
    contract = contract_of(files)
    ours, theirs = tmp_path / "ours.yaml", tmp_path / "theirs.yaml"
    ours.write_bytes(format_selection(contract))
    gen_oplist.gen_oplist(theirs, model_file_path=str(pte_of(files)))
    assert selection_of(ours) == selection_of(theirs)
    assert format_selection(contract_of(files)) == ours.read_bytes()
    assert sorted(contract["methods"]) == sorted(["get_length", *PACKAGES[name][0]])
    known = {
        each["operator"] for method in contract["methods"].values() for each in method["kernels"]
    }
    assert known == set(contract["operators"])
    assert contract["methods"]["get_length"]["kernels"] == []
    assert {each["kernels"] for each in contract["operators"].values()} <= {"portable", "prim"}
    assert contract["data_files"] == [each for each in sorted(files) if each.endswith(".ptd")]


def test_the_contract_of_several_packages_is_their_union(package, tmp_path):
    contracts = {name: contract_of(package(name).files, name) for name in PACKAGES}
    joined = join_contracts(list(contracts.values()))
    paths = [tmp_path / f"{name}.yaml" for name in contracts]
    for path, contract in zip(paths, contracts.values(), strict=True):
        path.write_bytes(format_selection(contract))
    (tmp_path / "joined.yaml").write_bytes(format_selection(joined))
    # This tool also refuses files that it can't merge.
    arguments = ["--output-dir", str(tmp_path), "--model-file-list-path"]
    (tmp_path / "list").write_text("\n".join(map(str, paths)))
    gen_all_oplist.main([*arguments, f"@{tmp_path / 'list'}"])
    theirs = selection_of(tmp_path / "selected_operators.yaml")
    ours = selection_of(tmp_path / "joined.yaml")
    assert ours["et_kernel_metadata"] == theirs["et_kernel_metadata"]
    assert ours["operators"].keys() == theirs["operators"].keys()
    assert joined["packages"] == sorted(PACKAGES)
    assert set(joined["backends"]) == {"XnnpackBackend", BACKEND_ID}
    assert joined["backends"]["XnnpackBackend"]["library"] == "xnnpack_backend"
    assert "mixed/branch" in joined["methods"]
    gen_selected_op_variants.write_selected_op_variants(tmp_path / "joined.yaml", tmp_path)
    header = (tmp_path / "selected_op_variants.h").read_text()
    portable = [n for n, e in joined["operators"].items() if n.startswith("aten::") and e["dtypes"]]
    assert portable
    assert all(f'compare("{name.removeprefix("aten::")}") == 0' in header for name in portable)


def test_a_contract_says_alignment_memory_and_schema(package):
    contract, plain = contract_of(package("aligned").files), contract_of(package("mixed").files)
    assert contract["alignment"]["constants"] >= 256 > plain["alignment"]["constants"] >= 16
    assert contract["alignment"]["segments"] >= 4096 > plain["alignment"]["segments"] >= 128
    assert plain["alignment"]["planned_memory"] >= 16
    assert plain["schemas"] == [{"identifier": "ET12", "version": 0}]
    contents = describe_contents(package("mixed").files)
    for name, method in plain["methods"].items():
        assert method["planned_memory"] == contents["methods"][name]["planned_memory"]
    branch = plain["methods"]["branch"]
    assert branch["backends"] == [] and branch["kernels"]
    step = plain["methods"]["step"]
    assert step["backends"] == ["XnnpackBackend"]


def test_a_newer_version_is_read_back(package):
    program = deserialize_pte_binary(pte_of(package("mixed").files).read_bytes()).program
    program.version = 7
    _, version = read_schema(memoryview(_program_to_flatbuffer(program).data))
    assert version == 7


@settings(max_examples=75, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.integers(0, 1 << 20), st.integers(0, 255))
def test_what_a_damaged_file_asks_for_is_read_or_refused(package, place, value):
    data = bytearray(pte_of(package("portable").files).read_bytes())
    end = read_program(memoryview(bytes(data))).program.end
    data[place % end] = value
    try:
        read_memory_alignment(memoryview(bytes(data))[:end])
        calls = read_kernel_calls(memoryview(bytes(data))[:end])
    except CorruptError:
        return
    assert all(isinstance(call.key, str) for own in calls.values() for call in own)
