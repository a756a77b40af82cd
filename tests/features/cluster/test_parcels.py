"""Actions as parcels: rebuilt elsewhere from data and blobs alone, or refused in one line.

There is no cluster, and nothing is performed.
"""

import json
import shutil
from dataclasses import replace
from types import SimpleNamespace

import numpy
import pytest

from pipeline.features.cluster import unpack
from pipeline.features.cluster.pack import Packer
from pipeline.features.cluster.shipment import Shipment
from pipeline.plan.kinds import validate
from pipeline.plan.plan import Plan
from pipeline.plan.requests import read_names, read_request
from pipeline.store.digest import hash_json
from pipeline.store.store import Store
from pipeline.store.workspace import open_workspace
from tests.support.bench import SAMPLES

SETTINGS = """
[tool.pte-pipeline]
store = ".store"
variables = ["LIMIT"]
secrets = ["LICENSE"]
"""
CONFIG = """
model: one
target: phone
family: ours
operators: [team_ops]
methods:
  encode:
    partitioners: [xnnpack]
    edge:
      passes:
        - mine:Mine: {key: "${LICENSE}"}
  decode:
    quantize: {quantizer: xnnpack, calibration: data/a.npz}
    partitioners: [{xnnpack: {per_op_mode: true}}]
constant_methods: {get_size: 3}
validate:
  atol: ${LIMIT}
  gates: {runs_on: [phone]}
  methods: {encode: {examples: data/a.npz}}
"""
TOGETHER = """
model: one
target: arm
emit: {metadata: true, etrecord: true, emit_stacktrace: true}
methods:
  encode: {partitioners: [coreml], allow_none: true}
  decode: {partitioners: [coreml]}
"""
APART = """
model: one
methods:
  encode:
    quantize: {quantizer: xnnpack, dynamic: true}
    partitioners: []
    edge: {skip_dim_order: true}
  decode: {partitioners: [vulkan], edge: {keep_ranges: true}}
validate: {bundle: true, gates: {max_size_growth: 0.1}}
"""
TARGET = "backends: [XnnpackBackend]\noperators: ['aten::add.out']\n"
PASS = "INPUTS = ['data/*.json']\nclass Mine: pass\n"


@pytest.fixture
def workspace(tmp_path, monkeypatch):
    """A workspace with a pass, its file, a library, options with files, a variable and a secret,
    and a package that appears to be linked."""
    monkeypatch.setenv("LIMIT", "0.5")
    monkeypatch.setenv("LICENSE", "hush")
    monkeypatch.delenv("PTE_PIPELINE_STORE", raising=False)
    root = tmp_path / "ours"
    files = {
        "pyproject.toml": SETTINGS,
        "partition_configs/one.yaml": CONFIG,
        "partition_configs/two.yaml": TOGETHER,
        "partition_configs/three.yaml": APART,
        "golden/one/encode.npz": "no real one",
        "baselines/three.json": "{}",
        "targets/phone.yaml": TARGET,
        "passes/mine.py": PASS,
        "data/facts.json": "{}",
        "operators/team_ops.py": "# none\n",
        "build/one/one.pte": "no real one",
        "build/one/manifest.json": "{}",
    }
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    numpy.savez(root / "data" / "a.npz", x=numpy.zeros(1))
    shutil.copytree(SAMPLES / "archives" / "models", root / "models")
    return open_workspace(root)


@pytest.fixture
def there(tmp_path, monkeypatch):
    """Return the settings of a worker in a separate folder, which shares only the store."""
    folder = tmp_path / "theirs"
    folder.mkdir()
    monkeypatch.setenv("PTE_PIPELINE_STORE", str(tmp_path / "ours" / ".store"))
    monkeypatch.chdir(folder)
    return folder


def actions(workspace):
    plan = Plan(workspace)
    assert not plan.problems("one")
    pte = workspace.store.put(b"no real one")
    yield from plan.quantizes("one").values()
    yield from plan.compiles("one")
    yield plan.link("one")
    yield plan.make_validation("one", {"one.pte": pte}, plan.methods("one"), ["encode"])
    yield plan.make_validation("one", {"one.pte": pte}, plan.methods("one"))


def test_every_kind_is_made_again_with_the_same_key(workspace, there, monkeypatch):
    """This holds even if no config variable is set and the workspace is out of reach."""
    found = list(actions(workspace))
    parcels = [Packer(workspace, always=False).pack(action) for action in found]
    kinds = ["quantize", "compile", "compile", "link", "validate", "validate"]
    assert [action.kind for action in found] == kinds
    assert found[-1].key["held_to"]["targets"]["phone"]
    monkeypatch.delenv("LIMIT")
    monkeypatch.delenv("LICENSE")
    for number, (action, text) in enumerate(zip(found, parcels, strict=True)):
        parcel = json.loads(text)
        other = unpack.open_workspace(parcel, there / str(number))
        unpack.materialise(parcel, other)
        again = read_request(parcel["request"], other)
        assert (again.digest, again.title) == (action.digest, action.title)
        assert hash_json(unpack.compute_key(again, other)) == action.digest
        assert str(workspace.root) not in text
    assert sorted(p.name for p in (there / "1").rglob("*.*")) == [
        *("facts.json", "mine.py", "one.pt2", "team_ops.py")
    ]
    assert (there / "4" / "build" / "one" / "one.pte").read_bytes() == b"no real one"
    spec = found[1].inputs.configs["encode"].edge.passes[0]
    assert again.inputs.config.methods["encode"].edge.passes[0] == spec


def requested(workspace, plan, package):
    """Return all actions of a package that go to workers, as its config requests them."""
    files = {"one.pte": workspace.store.put(b"no real one")}
    yield from plan.quantizes(package).values()
    yield from plan.compiles(package)
    yield plan.link(package)
    yield plan.make_validation(package, files, plan.methods(package))
    yield plan.make_validation(package, files, plan.methods(package), ["encode"])


# Optional fields of keys, by kind; a new one belongs here and in a config above.
OPTIONAL = {
    "quantize": {"host", "operators", "operator_inputs"},
    "compile": {
        *("order", "content", "delegates_beside", "passes", "operators", "operator_inputs"),
    },
    "link": {"allow_none", "family", "metadata"},
    "validate": {
        *("measured.operators", "measured.operator_inputs", "measured.only"),
        *("measured.share_mutable_buffers", "held_to.share_mutable_buffers"),
        *("held_to.family", "held_to.targets", "held_to.requires_baseline"),
    },
}


def places(key, path=()):
    """Yield the paths of a key's fields, two levels deep; deeper content belongs to the value."""
    for name, value in key.items():
        if isinstance(value, dict) and value and len(path) < 2:
            yield from places(value, (*path, name))
        else:
            yield (*path, name)


def with_another(request, place):
    """Return a request whose key has another value at one place."""
    changed = json.loads(json.dumps(request))
    *folders, name = place
    fields = changed["key"]
    for folder in folders:
        fields = fields[folder]
    fields[name] = "another" if fields[name] != "another" else "different"
    return json.dumps(changed)


def test_a_worker_counts_every_field_of_a_key_as_the_build_does(workspace, there, monkeypatch):
    """If any field differs, the action is refused with a line that says how."""
    monkeypatch.setenv("CI", "true")
    plan, fields = Plan(workspace), {}
    for package in ("one", "two", "three"):
        assert not plan.problems(package)
        for action in requested(workspace, plan, package):
            parcel = json.loads(Packer(workspace, always=False).pack(action))
            other = unpack.open_workspace(
                parcel, there / f"{package}-{action.kind}-{action.method}"
            )
            unpack.materialise(parcel, other)
            assert unpack.find_differences(parcel["request"], other) is None
            request = json.loads(parcel["request"])
            for place in places(request["key"]):
                refused = unpack.find_differences(with_another(request, place), other)
                assert refused and refused["differences"], (action.title, place)
                assert not any("\n" in line for line in refused["differences"])
                fields.setdefault(action.kind, set()).update([place[0], ".".join(place[:2])])
    missing = {kind: names - fields[kind] for kind, names in OPTIONAL.items()}
    assert not any(missing.values()), missing


def answer_of(text, folder):
    return json.loads(unpack.perform_parcel(text, str(folder)))


def test_a_worker_with_other_libraries_or_files_refuses(workspace, there, monkeypatch):
    first, *_ = actions(workspace)
    text = Packer(workspace, always=False).pack(first)
    monkeypatch.setenv("TORCH_SOMETHING", "1")
    refused = {"differences": ["the variable TORCH_SOMETHING is new"], "here": False}
    assert answer_of(text, there / "a") == {"refused": refused}
    monkeypatch.delenv("TORCH_SOMETHING")
    parcel = json.loads(text)
    parcel["files"]["data/a.npz"] = workspace.store.put(b"another")
    (line,) = answer_of(json.dumps(parcel), there / "b")["refused"]["differences"]
    assert line == "calibration inputs of decode changed"


def test_another_machine_is_told_from_other_code(workspace, there, monkeypatch):
    *_, link, _, validation = actions(workspace)
    pack = Packer(workspace, always=False).pack
    packed, linked = pack(validation), pack(link)
    monkeypatch.setattr(validate, "host", lambda: {"machine": "abacus"})
    refused = answer_of(packed, there / "a")["refused"]
    assert refused["here"] and any("-> abacus" in line for line in refused["differences"])
    monkeypatch.setattr(unpack, "code", lambda kind: "another")
    refused = answer_of(linked, there / "b")["refused"]
    assert refused == {"differences": ["pte-pipeline's own code changed"], "here": False}


def test_what_is_missing_or_leads_out_is_one_line(workspace, there, monkeypatch):
    first, *_ = actions(workspace)
    text = Packer(workspace, always=False).pack(first)
    outside = json.loads(text)
    outside["files"]["../stolen"] = outside["files"].pop("data/a.npz")
    (line,) = answer_of(json.dumps(outside), there / "a" / "b")["refused"]["differences"]
    assert line == "../stolen: is not a path in a workspace"
    assert not (there / "a" / "stolen").exists()
    assert "form" in answer_of(json.dumps({"kind": "compile"}), there / "c")["missing"]
    monkeypatch.setenv("PTE_PIPELINE_STORE", str(there / "empty"))
    missing = answer_of(text, there / "d")["missing"]
    assert " is missing; let both use one store " in missing and "\n" not in missing


def test_blobs_that_only_the_build_has_are_one_line(workspace, there, monkeypatch):
    compilation = list(actions(workspace))[1]
    blob, evicted = workspace.store.put(b"of an exporter"), hash_json("evicted")
    sources = {
        name: source._replace(exported=True, content=blob, examples=evicted)
        for name, source in compilation.inputs.sources.items()
    }
    exported = replace(compilation, inputs=replace(compilation.inputs, sources=sources))
    parcel = json.loads(Packer(workspace, always=False).pack(exported))
    assert parcel["blobs"] == [blob]
    unpack.materialise(parcel, unpack.open_workspace(parcel, there / "a"))
    monkeypatch.setenv("PTE_PIPELINE_STORE", str(there / "empty"))
    missing = answer_of(json.dumps({**parcel, "files": {}}), there / "b")["missing"]
    assert missing.startswith(f"store {there / 'empty'}: blob {blob} is missing; let both use one")


def test_a_package_is_validated_in_the_folder_of_its_builds(workspace, there):
    """Trials of `doit tune` are built below `build/.tune`."""
    trials = replace(workspace, build_folder=workspace.root / "build" / ".tune" / "one")
    package = trials.package("one")
    package.mkdir(parents=True)
    (package / "one.pte").write_bytes(b"no real one")
    *_, validation = actions(trials)
    parcel = json.loads(Packer(trials, always=False).pack(validation))
    other = unpack.open_workspace(parcel, there / "a")
    unpack.materialise(parcel, other)
    assert (other.package("one") / "one.pte").read_bytes() == b"no real one"
    outside = json.dumps({**parcel, "build": "../stolen"})
    (line,) = answer_of(outside, there / "b")["refused"]["differences"]
    assert line == "../stolen: is not a path in a workspace"


def test_what_a_parcel_needs_is_pushed_once(workspace, tmp_path):
    from dataclasses import replace

    from pipeline.features.remote.remote import RemoteSettings

    remote = RemoteSettings(f"file://{tmp_path}/remote", unsigned=True)
    shared = replace(workspace, store=Store(workspace.store.root, remote))
    first, *_ = actions(shared)
    packer = Packer(shared, always=False)
    packer.pack(first)
    pushed = [path for path in (tmp_path / "remote").rglob("*") if path.is_file()]
    assert len(pushed) == 3  # the archive, its calibration file, the library
    before = shared.store.remote.counts.pushed
    packer.pack(first)
    assert shared.store.remote.counts.pushed == before
    assert read_names(json.loads(packer.pack(first))["request"]).kind == "quantize"


def test_only_backends_with_requirements_are_tags(monkeypatch):
    """Backends that a plain install can lower for require nothing of a worker."""
    from pipeline.backends import BACKENDS
    from pipeline.features.cluster import tags
    from pipeline.plan.kinds.compile import CompileInputs
    from pipeline.plan.kinds.link import LinkInputs
    from tests.support.configs import parse_config

    methods = {"run": {"partitioners": ["openvino", "xnnpack"]}, "other": {"partitioners": []}}
    config = parse_config("p", {"model": "m", "methods": methods}, "p.yaml")
    inputs = CompileInputs(config, ["run", "other"], {"run": None, "other": None})
    assert tags.find_tags(SimpleNamespace(inputs=inputs)) == {"openvino"}
    assert tags.find_tags(SimpleNamespace(inputs=LinkInputs())) == frozenset()
    need = BACKENDS["openvino"].host.requirements[0]
    monkeypatch.setattr(type(need), "there", property(lambda self: lambda: self is not need), False)
    assert "openvino" not in tags.offered_tags()


def test_what_no_worker_can_run_says_what_it_lacks():
    shipment = Shipment(SimpleNamespace(), frozenset({"openvino"}), memory=0)
    assert not shipment.can_run([])
    assert not shipment.can_run([{"pte-memory", "pte-vulkan"}])
    assert shipment.can_run([{"pte-memory"}, {"pte-memory", "pte-openvino"}])
    assert "no worker of dask has what it needs: openvino" in shipment.describe_lack("dask")
