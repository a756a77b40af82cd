"""The output of `doit backends`: every backend, and every option of each."""

import subprocess
import sys
from dataclasses import replace

import pytest

from pipeline.backends import BACKENDS, QUANTIZERS
from pipeline.features.catalogue import listing
from pipeline.features.catalogue.listing import describe_backend, list_backends
from pipeline.store.errors import PipelineError


def test_every_backend_has_a_row():
    lines = list(list_backends())
    assert all(len(line) <= 100 for line in lines)
    rows = {line.split()[0]: line for line in lines if line.strip()}
    assert set(BACKENDS) <= set(rows)
    assert rows["xnnpack"].split()[-5:] == ["yes", "yes", "apart", "yes", "yes"]
    assert rows["cadence"].split()[-2:] == ["no", "apart"]  # no facts that aren't known


def test_what_is_not_run_here_says_what_would(monkeypatch):
    monkeypatch.delenv("PTE_DELEGATE_LIBRARIES", raising=False)
    lines = "\n".join(list_backends())
    places = {"vulkan": "library", "coreml": "Mac", "mlx": "library, Mac", "mps": "nowhere"}
    for name, place in places.items():
        (row,) = (line for line in lines.splitlines() if line.startswith(f"{name} "))
        assert f" no ({place}) " in row


def test_a_long_summary_goes_on_below(monkeypatch):
    long = replace(BACKENDS["xnnpack"], summary="word " * 20)
    monkeypatch.setattr(listing, "BACKENDS", {**BACKENDS, "xnnpack": long})
    lines = list(list_backends())
    assert all(len(line) <= 100 for line in lines)
    assert "\n".join(lines).count("word") == 20


@pytest.mark.parametrize("name", [*BACKENDS, *(n for n in QUANTIZERS if n not in BACKENDS)])
def test_every_option_is_told(name):
    lines = list(describe_backend(name))
    assert all(len(line) <= 100 for line in lines)
    told = {line.split(":")[0].strip() for line in lines if line.startswith("  ")}
    models = [BACKENDS[name].options] if name in BACKENDS else []
    models += [QUANTIZERS[name].options] if name in QUANTIZERS else []
    for model in models:
        assert set(model.model_fields) - {"quantizer"} <= told


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        ("vulkan", ["  texture_limits: list of 3 whole numbers 1..2147483647"]),
        ("coreml", ["      block_size: whole number from 1 = 32", "  pass_names: list of strings"]),
        ("webgpu", ["  operators: list of strings = [aten.add.Tensor, et_vk.rms_norm.default,"]),
        ("xnnpack", ["  modules: mapping of names to options or none"]),
        ("tosa", ["  eps: number above 0"]),
        ("torchao", ["  works here:  yes", "      bits: 4 | 8 = 8"]),
    ],
)
def test_options_are_told_in_words_of_yaml(name, lines):
    told = list(describe_backend(name))
    for line in lines:
        assert any(each.startswith(line) for each in told), line


def test_what_is_missing_is_told_with_its_remedy():
    text = "\n".join(describe_backend("mediatek"))
    assert "lowers here: needs mtk_converter and mtk_neuron: get" in text
    assert "lowers here: needs a plugin that lowers to it" in "\n".join(describe_backend("cadence"))


def test_a_name_that_is_not_there():
    with pytest.raises(PipelineError, match="no backend 'vulcan'; did you mean 'vulkan'"):
        list(describe_backend("vulcan"))


def test_no_torch_is_imported():
    code = (
        "import sys; from pipeline.features.catalogue.listing import *; list(list_backends());"
        "[list(describe_backend(n)) for n in ('xnnpack', 'vgf', 'qualcomm')];"
        "assert not {'torch', 'executorch'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
