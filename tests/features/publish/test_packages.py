"""`doit publish` and `doit fetch`, as a user runs them."""

import json

import pytest
import torch
from torch import nn
from torch.export import Dim, export
from torch.export.pt2_archive._package import package_pt2

from pipeline.features.provenance import verify
from pipeline.features.publish.fetch import fetch_package
from tests.support.bench import Bench
from tests.support.keys import write_keys

CONFIG = {
    "model": "scale",
    "target": "android-arm64",
    "methods": {"forward": {"partitioners": []}},
    "constant_methods": {"get_mean": 0.5},
    "publish": {"licence": "apache-2.0", "description": "Doubles | numbers."},
}


class Scale(nn.Module):
    def forward(self, x):
        return 2 * x


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """A workspace with a package, which was refused before it was built."""
    root = tmp_path_factory.mktemp("publish") / "w"
    for folder in ("models", "partition_configs"):
        (root / folder).mkdir(parents=True)
    (root / "dodo.py").write_text("from pipeline.tasks import *\n")
    rows = {"x": {0: Dim("rows", max=8)}}
    program = export(Scale(), (torch.ones(2, 3),), dynamic_shapes=rows)
    package_pt2(str(root / "models" / "scale.pt2"), exported_programs={"forward": program})
    (root / "partition_configs" / "scale.yaml").write_text(json.dumps(CONFIG))
    bench = Bench(root, allow="")
    assert bench.doit("publish") == 1
    assert "publish: name an address: --to s3://bucket/models" in bench.output
    assert bench.doit("publish", "--to", (root / "hub").as_uri()) == 1
    assert "publish: scale: not built as it is asked for (" in bench.output
    assert bench.doit() == 0, bench.output
    return bench


@pytest.mark.slow
def test_a_package_is_published_and_fetched(built, tmp_path):
    hub = built.root / "hub"
    assert built.doit("publish", "scale", "--to", hub.as_uri(), "--dry-run") == 0, built.output
    assert ": would send 4 files, " in built.output
    assert not hub.exists()
    assert built.doit("publish", "scale", "--to", hub.as_uri()) == 0, built.output
    assert ": sent 4 files, " in built.output
    (release,) = json.loads((hub / "packages.json").read_text())["releases"]
    assert (release["verdict"], release["devices"]) == ("passed", {"executorch": "passed"})
    names = [file["name"] for file in release["files"]]
    assert names == ["contract.json", "manifest.json", "scale.pte", "README.md"]
    card = (hub / release["path"] / "README.md").read_text()
    for line in (
        'license: "apache-2.0"',
        "Doubles \\| numbers.",
        "| input 0 | `x` | float32 | \\[d0: 0 to 8, 3\\] |",
        "| `get_mean` | `0.5` |",
        "| `forward` | passed |",
    ):
        assert f"\n{line}\n" in card
    assert str(built.root) not in card
    before = {path: path.stat().st_mtime_ns for path in hub.rglob("*") if path.is_file()}
    assert built.doit("publish", "--to", hub.as_uri()) == 0
    assert f"{release['path']}: is there; nothing to send\n" in built.output
    assert {path: path.stat().st_mtime_ns for path in hub.rglob("*") if path.is_file()} == before

    assert built.doit("fetch", hub.as_uri(), "android-arm64", "scale", str(tmp_path)) == 0
    path = tmp_path / release["path"] / "scale.pte"
    assert f"{path}\n" in built.output
    assert path.read_bytes() == built.bytes_of("scale", "scale.pte")
    assert built.doit("fetch", hub.as_uri(), "ios") == 1
    assert "packages.json has no target 'ios'; " in built.output


@pytest.mark.slow
def test_another_licence_lowers_nothing_and_attestations_hold(built, tmp_path):
    config = built.root / "partition_configs" / "scale.yaml"
    config.write_text(json.dumps({**CONFIG, "publish": {"licence": "MIT"}}))
    assert built.doit() == 0, built.output
    outcomes = built.outcomes()
    assert outcomes["compile scale/forward"] == outcomes["link scale"] == "up-to-date"
    private, public = write_keys(tmp_path / "keys")
    assert built.doit("attest", PTE_PIPELINE_SIGNING_KEY=str(private)) == 0, built.output
    hub = (tmp_path / "hub").as_uri()
    assert built.doit("publish", "--to", hub) == 0, built.output
    assert ": sent 6 files, " in built.output
    card = next((tmp_path / "hub").rglob("README.md")).read_text()
    assert "- Licence: MIT\n" in card
    pte = fetch_package(hub, "android-arm64", folder=tmp_path)
    assert verify.run([str(pte.parent), str(public)], tmp_path) == 0
