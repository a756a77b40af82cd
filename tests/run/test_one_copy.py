"""The store holds large weights once, and packages are assembled from them."""

import json
import shutil

import pytest

from tests.support.lowerable import bench_for

EXPORTER = """
import torch
from torch import nn
from torch.export import export


def export_methods():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(512, 512, bias=False), nn.Linear(512, 768))
    program = export(model.eval().requires_grad_(False), (torch.ones(1, 512),))
    return {"run": program}
"""
WEIGHTS = 4 * 512 * (512 + 768)


@pytest.mark.slow
def test_a_package_is_put_together_of_what_the_store_holds(tmp_path):
    config = {"model": "wide", "methods": {"run": {"partitioners": []}}}
    bench = bench_for(tmp_path / "w", {"wide": config})
    (bench.root / "models" / "wide.py").write_text(EXPORTER)
    remote = {
        "PTE_PIPELINE_REMOTE": (tmp_path / "remote").as_uri(),
        "PTE_PIPELINE_REMOTE_TRUST": "unsigned",
    }
    assert bench.doit("lower", **remote) == 0, bench.output
    made = bench.bytes_of("wide", "wide.pte")
    held = sum(path.stat().st_size for path in (bench.store / "blobs").rglob("*"))
    assert held < 2 * WEIGHTS + 500_000  # the exported program, and the weights in the package

    pte = bench.root / "build" / "wide" / "wide.pte"
    pte.write_bytes(b"edited" + made[6:])
    assert bench.doit("lower", **remote) == 0, bench.output
    assert bench.bytes_of("wide", "wide.pte") == made
    assert bench.doit("cache", "verify", **remote) == 0, bench.output

    pieces = stored(bench)["joined"]["wide.pte"]
    shutil.rmtree(bench.store / "blobs" / pieces[-1][1][:2])
    pte.unlink()
    assert bench.doit("lower", **remote) == 0, bench.output  # from the remote
    assert bench.bytes_of("wide", "wide.pte") == made

    shutil.rmtree(bench.root / "build")
    shutil.rmtree(bench.store)
    assert bench.doit("lower", **remote) == 0, bench.output
    assert {each["outcome"] for each in bench.actions()} == {"hit"}
    assert bench.bytes_of("wide", "wide.pte") == made


def stored(bench):
    """Return the result of the only link in the store."""
    entries = [json.loads(path.read_text()) for path in bench.store.glob("actions/*/*.json")]
    (link,) = [each for each in entries if each["key"].get("kind") == "link"]
    return link["result"]
