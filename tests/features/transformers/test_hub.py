"""Models from a hub: each file is fetched once and checked against its digest, and each failure
gives a one-line error.

The hub runs on loopback (`tests/support/hub.py`), and huggingface_hub queries it.
"""

import importlib.util
from dataclasses import replace

import pytest

from pipeline.features.transformers.hub import (
    _choose_weights,
    download,
    find_snapshot,
    is_on_hub,
    resolve_commit,
)
from pipeline.features.transformers.model_download import fetch_source
from pipeline.features.transformers.revisions import find_folder
from pipeline.plan.kinds.export import ExportInputs
from pipeline.plan.reads import Surroundings
from pipeline.run.stages import Stages
from pipeline.store.errors import SourceError
from pipeline.store.store import Store
from pipeline.store.workspace import Workspace
from tests.support.bench import Bench
from tests.support.hub import COMMIT, NAME, serving
from tests.support.torchvision import import_torchvision

needs = pytest.mark.skipif(
    importlib.util.find_spec("transformers") is None, reason="the extra `gallery` is not installed"
)
pytestmark = needs
WEIGHTS = b"weights" * 100
FILES = {
    "config.json": b"{}",
    "own.py": b"own = 1",
    "model.safetensors": WEIGHTS,
    "pytorch_model.bin": b"other weights",
}


def use(monkeypatch, tmp_path, address):
    """Point huggingface_hub, which reads its settings on import, to a hub and a cache."""
    from huggingface_hub import constants

    template = f"{address}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
    monkeypatch.setattr(constants, "ENDPOINT", address)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def hub(monkeypatch, tmp_path):
    with serving(FILES) as (hub, address):
        use(monkeypatch, tmp_path, address)
        yield hub


def asked_for(hub):
    """Return the names of the files whose content was requested."""
    gets = (line for line in hub.asked if line.startswith("GET") and "/resolve/" in line)
    return [line.rpartition("/")[2] for line in gets]


def blobs(tmp_path):
    return sorted(path.name for path in (tmp_path / "cache").rglob("blobs/*"))


def test_files_come_once_and_then_no_hub_is_asked(hub, monkeypatch):
    listing = download(NAME, COMMIT, None, False)
    assert listing == {name: hub.digest(name) for name in FILES}
    assert asked_for(hub) == ["config.json", "model.safetensors"]
    folder = find_snapshot(NAME, COMMIT)
    assert find_folder(NAME, COMMIT) == folder
    assert (folder / "model.safetensors").read_bytes() == WEIGHTS
    hub.asked.clear()
    assert download(NAME, COMMIT, listing, False) == listing and not hub.asked
    download(NAME, COMMIT, listing, True)
    assert asked_for(hub) == ["own.py"]


def test_without_a_hub_the_cache_says_the_digests(hub, monkeypatch, tmp_path):
    from huggingface_hub import constants

    download(NAME, COMMIT, None, False)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert download(NAME, COMMIT, None, False) == {}
    find_snapshot(NAME, COMMIT).joinpath("model.safetensors").resolve().write_bytes(b"damaged")
    with pytest.raises(SourceError, match=r"model\.safetensors has the digest .* it was removed"):
        download(NAME, COMMIT, None, False)
    with pytest.raises(SourceError, match=r"incomplete in .*cache, and HF_HUB_OFFLINE is set"):
        download(NAME, COMMIT, None, False)


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ({"forged": {"model.safetensors"}}, r"model\.safetensors has the digest .* the hub lists"),
        ({"cut": {"model.safetensors"}}, r"connection to .* ended early .* nothing of that file"),
        ({"commit": "d" * 40}, rf"asked for commit {COMMIT}, the hub sent config\.json of ddd"),
    ],
)
def test_what_is_no_file_of_the_commit_is_not_kept(hub, monkeypatch, tmp_path, fault, message):
    monkeypatch.setattr("time.sleep", lambda seconds: None)  # between attempts
    for name, value in fault.items():
        setattr(hub, name, value)
    with pytest.raises(SourceError, match=message):
        download(NAME, COMMIT, None, False)
    assert hub.digest("model.safetensors") not in blobs(tmp_path)
    assert not list((tmp_path / "cache").rglob("*.incomplete"))
    hub.forged, hub.cut, hub.commit = set(), set(), COMMIT
    assert download(NAME, COMMIT, None, False)


@pytest.mark.parametrize(
    ("status", "code", "message"),
    [
        (403, "GatedRepo", rf"{NAME}: gated; accept its terms on http.*/{NAME}, then set HF_TOKEN"),
        (401, "GatedRepo", r"gated; accept its terms"),
        (404, "RepoNotFound", r"no folder of this name, and http.* has no such model or hides it"),
        (404, "RevisionNotFound", rf"the hub has no revision {COMMIT} of this model"),
        (401, "", r"answered with status 401; set another HF_TOKEN"),
        (418, "", r"answered with status 418; run again later"),
    ],
)
def test_a_refusal_is_one_line(hub, tmp_path, status, code, message):
    hub.status, hub.code = status, code
    with pytest.raises(SourceError, match=message) as caught:
        download(NAME, COMMIT, None, False)
    assert len(caught.value.lines) == 1 and not blobs(tmp_path)


def test_a_hub_that_is_not_there_is_one_line(hub, monkeypatch):
    from huggingface_hub import constants

    monkeypatch.setattr("time.sleep", lambda seconds: None)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(
        SourceError,
        match=r"incomplete in .*, and http://127\.0\.0\.1:9 can't be "
        "r",
    ):
        download(NAME, COMMIT, None, False)


def test_a_branch_is_a_commit_today(hub):
    assert resolve_commit(NAME, "main") == COMMIT


@pytest.mark.parametrize(
    ("listing", "weights"),
    [
        (["a.bin", "model.safetensors", "model-00001-of-00002.safetensors"], ["model.safetensors"]),
        (
            ["model.safetensors.index.json", "model-1-of-1.safetensors", "pytorch_model.bin"],
            ["model.safetensors.index.json", "model-1-of-1.safetensors"],
        ),
        (["pytorch_model.bin", "onnx/model.safetensors"], ["pytorch_model.bin"]),
        (["tf_model.h5"], []),
    ],
)
def test_weights_are_those_that_transformers_prefers(listing, weights):
    assert _choose_weights(listing) == weights


def test_a_folder_of_the_workspace_comes_before_a_hub(tmp_path):
    assert is_on_hub(tmp_path, NAME) and is_on_hub(tmp_path, "gpt2")
    (tmp_path / NAME).mkdir(parents=True)
    for name in (NAME, "../other", "a/b/c", str(tmp_path / "absent"), "a/..b"):
        assert not is_on_hub(tmp_path, name)


# Sources


def fetch(root, **parameters):
    """Run the stages before the exporter of a workspace's only source, and return them."""
    workspace, stages = Workspace(root, Store(root / ".store"), 1), Stages()
    inputs = ExportInputs("tiny", "models/tiny.yaml", "", Surroundings({}, ()))
    fetch_source(workspace, replace(inputs, parameters=parameters), stages)
    return [name for name, *_ in stages.spans]


def write_source(root, revision):
    files = {
        "dodo.py": "from pte_pipeline.tasks import *\n",
        "models/tiny.yaml": f"transformers: {NAME}\ntask: image-classification\n"
        f"revision: {revision}\n",
        "partition_configs/tiny.yaml": "model: tiny\ntarget: host\n"
        "methods: {forward: {partitioners: [xnnpack]}}\n",
    }
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_two_workspaces_download_a_model_once(hub, tmp_path):
    for name in ("first", "second"):
        hub.asked.clear()
        root = write_source(tmp_path / name, COMMIT)
        assert fetch(root) == ["download"]
        assert bool(asked_for(hub)) == (name == "first")
    hub.asked.clear()
    fetch(root)
    assert not hub.asked


def test_a_branch_is_refused_with_the_commit_to_write(hub, tmp_path):
    root = write_source(tmp_path, "main")
    with pytest.raises(SourceError, match=rf"tiny\.yaml: revision: main of .*`revision: {COMMIT}`"):
        fetch(root)
    with pytest.raises(SourceError, match=r"export: revision: chooses code that runs"):
        fetch(root, revision=COMMIT)
    assert fetch(write_source(tmp_path, COMMIT)) == ["download"]


def test_a_folder_asks_no_hub(hub, tmp_path):
    root = write_source(tmp_path, COMMIT)
    (root / NAME).mkdir(parents=True)
    assert fetch(root) == [] and not hub.asked


@pytest.mark.slow
def test_a_source_of_a_hub_is_exported_and_then_up_to_date(monkeypatch, tmp_path):
    import torch

    import_torchvision()
    import transformers as hf

    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    config = hf.ViTConfig(**sizes, intermediate_size=8, image_size=8, patch_size=4, num_labels=3)
    torch.manual_seed(0)
    hf.ViTForImageClassification(config).save_pretrained(tmp_path / "vit")
    files = {path.name: path.read_bytes() for path in (tmp_path / "vit").iterdir()}
    bench = Bench(write_source(tmp_path / "workspace", COMMIT))
    with serving(files) as (hub, address):
        use(monkeypatch, tmp_path, address)
        assert bench.doit("export:tiny") == 0, bench.output
        assert sorted(asked_for(hub)) == sorted(files)
    # The hub is no longer running.
    assert bench.doit("export:tiny") == 0, bench.output
    assert bench.outcomes() == {"export tiny": "up-to-date"}
