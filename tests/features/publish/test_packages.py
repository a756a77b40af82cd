"""`doit publish` and `doit fetch`, as a user runs them."""

import io
import json
from contextlib import redirect_stdout

import pytest
import torch
from torch import nn
from torch.export import Dim, export
from torch.export.pt2_archive._package import package_pt2

from pipeline.features.provenance import verify
from pipeline.features.publish import fetch
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


@pytest.fixture
def bench(tmp_path):
    """A workspace with one package."""
    root = tmp_path / "w"
    for folder in ("models", "partition_configs"):
        (root / folder).mkdir(parents=True)
    (root / "dodo.py").write_text("from pipeline.tasks import *\n")
    rows = {"x": {0: Dim("rows", max=8)}}
    program = export(Scale(), (torch.ones(2, 3),), dynamic_shapes=rows)
    package_pt2(str(root / "models" / "scale.pt2"), exported_programs={"forward": program})
    (root / "partition_configs" / "scale.yaml").write_text(json.dumps(CONFIG))
    return Bench(root, allow="")


@pytest.mark.slow
def test_a_package_is_published_and_fetched(bench, tmp_path):
    hub = tmp_path / "hub"
    words = ("publish", "--to", hub.as_uri())
    assert bench.doit(*words) == 1
    assert "publish: scale: its build is out of date (" in bench.output
    assert bench.doit() == 0, bench.output
    private, public = write_keys(tmp_path / "keys")
    assert bench.doit("attest", PTE_PIPELINE_SIGNING_KEY=str(private)) == 0, bench.output
    assert bench.doit(*words) == 0, bench.output
    assert ": sent 6 files, " in bench.output
    (release,) = json.loads((hub / "packages.json").read_text())["releases"]
    assert (release["verdict"], release["devices"]) == ("passed", {"executorch": "passed"})
    assert [file["name"] for file in release["files"]] == [
        *("contract.json", "manifest.json", "scale.cdx.json", "scale.pte"),
        *("scale.pte.intoto.jsonl", "README.md"),
    ]
    card = (hub / release["path"] / "README.md").read_text()
    for line in (
        'license: "apache-2.0"',
        "Doubles \\| numbers.",
        "| input 0 | `x` | float32 | \\[d0: 0 to 8, 3\\] |",
        "| `get_mean` | `0.5` |",
        "| `forward` | passed |",
    ):
        assert f"\n{line}\n" in card
    assert str(bench.root) not in card
    before = {path: path.stat().st_mtime_ns for path in hub.rglob("*") if path.is_file()}
    assert bench.doit(*words) == 0
    assert f"{release['path']}: already uploaded\n" in bench.output
    assert {path: path.stat().st_mtime_ns for path in hub.rglob("*") if path.is_file()} == before

    words = [hub.as_uri(), "android-arm64", "scale", str(tmp_path)]
    with redirect_stdout(io.StringIO()) as output:
        assert fetch.run(words, tmp_path) == 0
    pte = tmp_path / release["path"] / "scale.pte"
    assert output.getvalue() == f"{pte}\n"
    assert pte.read_bytes() == bench.bytes_of("scale", "scale.pte")
    assert verify.run([str(pte.parent), str(public)], tmp_path) == 0

    # Settings that only affect the card are in no key.
    config = {**CONFIG, "publish": {"licence": "MIT"}}
    (bench.root / "partition_configs" / "scale.yaml").write_text(json.dumps(config))
    assert bench.doit() == 0, bench.output
    outcomes = bench.outcomes()
    assert outcomes["compile scale/forward"] == outcomes["link scale"] == "up-to-date"
