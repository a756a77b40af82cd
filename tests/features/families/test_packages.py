"""A workspace of adapters on one base, built by `doit` from an empty store."""

import json
import shutil

import pytest
import torch

from pipeline.features.loading.load_package import load_package
from pipeline.store.errors import PipelineError
from tests.support.bench import REPOSITORY, Bench
from tests.support.keys import write_keys

pytestmark = pytest.mark.slow
CONFIG = "partition_configs/assistant.yaml"


def bench_of(example, folder):
    return Bench(shutil.copytree(REPOSITORY / "examples" / example, folder / example))


def pte(bench, package):
    return bench.root / "build" / package / f"{package}.pte"


def result(bench, package, *ptds):
    words = torch.arange(16).reshape(1, 16)
    return load_package(pte(bench, package), ptds=ptds).forward(words)


@pytest.fixture(scope="module")
def adapters(tmp_path_factory):
    """The example with its base and one adapter, built."""
    bench = bench_of("adapters", tmp_path_factory.mktemp("families"))
    bench.edit(CONFIG, "[base, chat, code, summary]", "[base, chat]")
    assert bench.doit() == 0, bench.output
    return bench


def test_adapters_share_the_base(adapters):
    packages = ["assistant-base", "assistant-chat"]
    base, chat = (adapters.bytes_of(each, "assistant.ptd") for each in packages)
    assert base == chat
    sizes = [pte(adapters, each).stat().st_size for each in packages]
    assert max(sizes) < 0.03 * len(chat)
    report = json.loads(adapters.bytes_of("assistant-chat", "report.json"))
    assert sorted(report["family"]["packages"]) == packages
    gates = {gate["gate"]: gate["figure"] for gate in report["gates"]}
    assert gates["max_added_size"] == sizes[1]
    assert gates["max_size"] == len(chat) + sizes[1]
    assert gates["max_family_size"] == len(chat) + sum(sizes)
    page = adapters.bytes_of("assistant-chat", "report.html").decode()
    assert "What each package loads." in page and "assistant-base: its own" in page
    assert "assistant-base: its own" in (adapters.root / "build" / "index.html").read_text()


def test_a_package_runs_with_the_file_of_another(adapters):
    own = result(adapters, "assistant-chat")
    theirs = adapters.root / "build" / "assistant-base" / "assistant.ptd"
    assert own.equal(result(adapters, "assistant-chat", theirs))
    assert not own.equal(result(adapters, "assistant-base"))


def test_another_file_is_refused(adapters, tmp_path):
    shutil.copytree(adapters.root / "build" / "assistant-chat", tmp_path / "copy")
    file = tmp_path / "copy" / "assistant.ptd"
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    line = r"^assistant-chat\.pte: assistant\.ptd is damaged, or from another build: digest "
    with pytest.raises(PipelineError, match=line):
        load_package(tmp_path / "copy" / "assistant-chat.pte")


def test_a_new_adapter_leaves_the_others_as_they_are(adapters):
    before = adapters.bytes_of("assistant-chat", "assistant.ptd")
    adapters.edit(CONFIG, "[base, chat]", "[base, chat, code]")
    assert adapters.doit("lower") == 0, adapters.output
    made = {name: how for name, how in adapters.outcomes().items() if how != "up-to-date"}
    # Refit if one process compiled both of the others, since it learned from the partitions that
    # they share; otherwise the next one needs no lowering.
    assert made.pop("compile assistant-code/forward") in ("built", "refit")
    assert made == {
        "export assistant+adapter~code": "built",
        "link assistant-code": "refit",  # without torch, with another adapter's layout
    }
    assert adapters.bytes_of("assistant-code", "assistant.ptd") == before
    again = forget_links(adapters)
    assert again.doit("lower:assistant-code", PTE_PIPELINE_REFIT="0") == 0, again.output
    assert again.outcomes()["link assistant-code"] == "built"
    name = "assistant-code.pte"
    assert again.bytes_of("assistant-code", name) == adapters.bytes_of("assistant-code", name)


def forget_links(bench):
    """Return a copy of a workspace in which everything is compiled and nothing is linked."""
    copy = Bench(shutil.copytree(bench.root, bench.root.with_name("again")))
    shutil.rmtree(copy.root / "build")
    for path in (copy.store / "actions").rglob("*"):
        kind = json.loads(path.read_text())["key"]["kind"] if path.is_file() else ""
        if kind in ("link", "relink", "family", "family-files"):
            path.unlink()
    return copy


# Without a base: what two packages have in common


EXPORTER = """
import torch
from torch import nn


class Tiny(nn.Module):
    def __init__(self, seed):
        super().__init__()
        torch.manual_seed(0)
        self.table, self.base = nn.Embedding(64, 64), nn.Linear(64, 64)
        torch.manual_seed(seed)
        self.head = nn.Linear(64, 64)

    def forward(self, words):
        return self.head(self.base(self.table(words)))


def export_methods(seed):
    model = Tiny(int(seed)).eval().requires_grad_(False)
    return {"forward": torch.export.export(model, (torch.arange(8),))}
"""
TINY = """
model: tiny
matrix: {seed: [1, 2]}
export: {seed: "${matrix.seed}"}
family: tiny
methods: {forward: {partitioners: [xnnpack]}}
"""


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """Two linked packages that share a table and a layer."""
    folder = tmp_path_factory.mktemp("tiny")
    bench, (private, _) = write_tiny(folder / "first"), write_keys(folder)
    remote = {"PTE_PIPELINE_REMOTE": (folder / "remote").as_uri()}
    assert bench.doit("lower", PTE_PIPELINE_SIGNING_KEY=str(private), **remote) == 0, bench.output
    return bench


def write_tiny(folder):
    files = {"dodo.py": "from pipeline.tasks import *\n"}
    files |= {"models/tiny.py": EXPORTER, "partition_configs/tiny.yaml": TINY}
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return Bench(folder)


def test_a_family_comes_whole_from_a_remote(tiny, tmp_path):
    fresh, theirs = write_tiny(tmp_path / "fresh"), tiny.root.parent
    remote = {"PTE_PIPELINE_REMOTE": (theirs / "remote").as_uri()}
    remote["PTE_PIPELINE_TRUSTED_KEYS"] = str(theirs / "key.pub")
    assert fresh.doit("lower", **remote) == 0, fresh.output
    assert {*fresh.outcomes().values()} == {"hit"}, fresh.outcomes()
    for package in ("tiny-1", "tiny-2"):
        for name in (f"{package}.pte", "tiny.ptd"):
            assert fresh.bytes_of(package, name) == tiny.bytes_of(package, name)


def test_a_further_package_is_linked_without_torch(tiny):
    own = tiny.bytes_of("tiny-1", "tiny-1.pte")
    tiny.edit("partition_configs/tiny.yaml", "[1, 2]", "[1, 2, 3]")
    assert tiny.doit("lower") == 0, tiny.output
    made = {name: how for name, how in tiny.outcomes().items() if how == "refit"}
    links = {f"link tiny-{each}" for each in (1, 2, 3)}
    assert made.keys() == {"compile tiny-3/forward", *links}
    assert tiny.bytes_of("tiny-1", "tiny-1.pte") == own
    words, ptd = torch.arange(8), tiny.root / "build" / "tiny-1" / "tiny.ptd"
    results = [load_package(pte(tiny, f"tiny-{n}"), ptds=[ptd]).forward(words) for n in (1, 3)]
    assert not results[0].equal(results[1])
    with pytest.raises(
        PipelineError, match=r"^tiny-3\.pte: tiny-1\.pte is not a file of this package"
    ):
        load_package(pte(tiny, "tiny-3"), ptds=[pte(tiny, "tiny-1")])


def test_a_package_that_fails_stops_no_other_of_its_base(tiny):
    config = tiny.root / "partition_configs" / "tiny.yaml"
    with_base = TINY.replace("family: tiny", "family: {name: tiny, base: tiny-1}")
    config.write_text(with_base.replace("[1, 2]", "[1, none]"))
    assert tiny.doit() == 1
    outcomes = tiny.outcomes()
    assert outcomes["export tiny+seed~none"] == "failed"
    assert (outcomes["link tiny-1"], outcomes["validate tiny-1"]) == ("built", "built")
    assert outcomes["link tiny-none"] == "not-run"
