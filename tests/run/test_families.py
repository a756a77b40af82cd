"""A workspace of adapters over one base, from an empty store: what `doit` makes of it."""

import json
import shutil

import pytest
import torch

from pipeline.devices.load_package import load_package
from pipeline.store.errors import PipelineError
from tests.support.bench import REPOSITORY, Bench

pytestmark = pytest.mark.slow
CONFIG = "partition_configs/assistant.yaml"


@pytest.fixture(scope="module")
def adapters(tmp_path_factory):
    """The example with two adapters, built."""
    root = tmp_path_factory.mktemp("families") / "adapters"
    shutil.copytree(REPOSITORY / "examples" / "adapters", root)
    bench = Bench(root)
    bench.edit(CONFIG, "[chat, code, summary]", "[chat, code]")
    assert bench.doit() == 0, bench.output
    return bench


def pte(bench, package):
    return bench.root / "build" / package / f"{package}.pte"


def result(bench, package, *ptds):
    words = torch.arange(16).reshape(1, 16)
    return load_package(pte(bench, package), ptds=ptds).forward(words)


def test_adapters_share_one_base(adapters):
    chat, code = (
        adapters.bytes_of(f"assistant-{each}", "assistant.ptd") for each in ("chat", "code")
    )
    assert chat == code
    sizes = [pte(adapters, f"assistant-{each}").stat().st_size for each in ("chat", "code")]
    assert max(sizes) < 0.03 * len(chat)
    report = json.loads(adapters.bytes_of("assistant-chat", "report.json"))
    assert sorted(report["family"]) == ["assistant-chat", "assistant-code"]
    gates = {gate["gate"]: gate for gate in report["gates"]}
    assert gates["max_added_size"]["figure"] == sizes[0]
    assert gates["max_family_size"]["figure"] == len(chat) + sum(sizes)
    page = adapters.bytes_of("assistant-chat", "report.md").decode()
    assert "sharing saves 49.0 %" in page


def test_a_package_runs_with_the_file_of_another(adapters):
    own = result(adapters, "assistant-chat")
    theirs = adapters.root / "build" / "assistant-code" / "assistant.ptd"
    assert own.equal(result(adapters, "assistant-chat", theirs))
    assert not own.equal(result(adapters, "assistant-code"))


def test_another_file_is_refused(adapters, tmp_path):
    shutil.copytree(adapters.root / "build" / "assistant-chat", tmp_path / "copy")
    file = tmp_path / "copy" / "assistant.ptd"
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    with pytest.raises(PipelineError, match=r"assistant\.ptd"):
        load_package(tmp_path / "copy" / "assistant-chat.pte")


def test_a_new_adapter_compiles_itself_alone(adapters):
    before = adapters.bytes_of("assistant-chat", "assistant.ptd")
    adapters.edit(CONFIG, "[chat, code]", "[chat, code, summary]")
    assert adapters.doit("lower") == 0, adapters.output
    outcomes = adapters.outcomes()
    made = [name for name in outcomes if outcomes[name] != "up-to-date" and "link" not in name]
    assert made == ["export assistant+adapter~summary", "compile assistant-summary/forward"]
    assert outcomes["compile assistant-summary/forward"] == "refit"  # other weights, and no more
    for each in ("chat", "code", "summary"):
        assert adapters.bytes_of(f"assistant-{each}", "assistant.ptd") == before


def test_all_packages_share_alike(adapters):
    own = (adapters.root / CONFIG).read_text().replace("[chat, code", "[poem")
    own = own.replace("family: assistant", "family: {name: assistant, share: [layers]}")
    (adapters.root / "partition_configs" / "other.yaml").write_text(own)
    assert adapters.doit("plan", "other-poem") == 1
    assert "family: shares otherwise than the package 'assistant-chat'" in adapters.output
    (adapters.root / "partition_configs" / "other.yaml").unlink()
