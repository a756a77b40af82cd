"""A process that loads damaged packages and manifests survives, with one clear error.

`LOADING_MUTATIONS=5000 pytest tests/trust/test_loading.py` tries more than CI does.
"""

import copy
import json
import os
import random
import shutil
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
import torch

from pipeline import load_package
from pipeline.devices.bindings import Package
from pipeline.devices.interface import PackageFiles
from pipeline.store.errors import DeviceError, PipelineError
from pipeline.store.files import MANIFEST
from tests.devices.test_bindings import programs
from tests.features.loading.test_load_package import place

MUTATIONS = int(os.environ.get("LOADING_MUTATIONS", "250"))
MANIFESTS = MUTATIONS * 4 // 5
WORDS = (b"\xff\xff\xff\x7f", b"\xff\xff\xff\xff", b"\1\0\0\0", b"\0\0\0\x80")


def damage(content: bytes, seed: int) -> bytes:
    """Return a package's bytes, some of them flipped, zeroed or replaced, or the end cut off."""
    chance = random.Random(seed)
    damaged = bytearray(content)
    kind = chance.choice(("flip", "flip", "zero", "cut", "word"))
    if kind == "cut":
        return content[: chance.randrange(len(content))]
    for _ in range(chance.choice((1, 1, 3, 10))):
        place = chance.randrange(len(content) - 8) & ~3
        if kind == "flip":
            damaged[place + chance.randrange(8)] ^= 1 << chance.randrange(8)
        elif kind == "zero":
            damaged[place : place + 8] = bytes(8)
        else:
            damaged[place : place + 4] = chance.choice(WORDS)
    return bytes(damaged)


@pytest.mark.parametrize("with_manifest", [False, True])
def test_no_damaged_package_ends_the_process_that_loads_it(tmp_path, placed, with_manifest):
    """The runtime itself ended it on 61 of 250 packages, opened, loaded and run, in ExecuTorch
    1.4.1."""
    if with_manifest:
        shutil.copy(placed.parent / MANIFEST, tmp_path)
        line = f"model.pte: {MANIFEST} next to it belongs to another file: it describes model.pte"
    else:
        line = f"model.pte: there is no {MANIFEST} next to it to check its bytes against"
    content = placed.read_bytes()
    path = tmp_path / "model.pte"
    for seed in range(MUTATIONS):
        damaged = damage(content, seed)
        if damaged == content:  # the zeroed bytes were zero before
            continue
        path.write_bytes(damaged)
        with pytest.raises(PipelineError) as caught:
            load_package(path)
        assert str(caught.value).startswith(line)
    path.write_bytes(content)
    shutil.copy(placed.parent / MANIFEST, tmp_path)
    assert load_package(path).encode(torch.ones(3, 4)).shape == (3, 3)


def test_names_that_are_no_text_are_an_error_of_the_package(placed):
    content = placed.read_bytes().replace(b"encode\0", b"\xffncode\0")
    files = PackageFiles("model.pte", content)
    with pytest.raises(DeviceError, match=r"model\.pte: does not open: damaged: "):
        Package(files)


def iter_places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield each container in a JSON value with each of its keys."""
    keys = value if isinstance(value, dict) else range(len(value))
    for key in list(keys):
        yield value, key
        if isinstance(value[key], dict | list):
            yield from iter_places(value[key])


VALUES = (None, True, -1, 2**70, 1.5, "", "os", "../x.ptd", "\0", [], {}, [1], {"a": 1}, [[]])


def damage_manifest(text: str, seed: int) -> bytes:
    """Return a manifest's text with a byte changed, or with a value replaced or removed."""
    chance = random.Random(seed)
    if seed % 4 == 0:
        return damage(text.encode(), seed)
    manifest = copy.deepcopy(json.loads(text))
    container, key = chance.choice(list(iter_places(manifest)))
    if seed % 4 == 1:
        del container[key]
    else:
        container[key] = chance.choice(VALUES)
    return json.dumps(manifest).encode()


@pytest.fixture(scope="module")
def placed(tmp_path_factory):
    methods = {name: programs()[name] for name in ("encode", "embed")}
    return place(tmp_path_factory.mktemp("placed"), methods)


def test_a_damaged_manifest_is_one_clear_error(tmp_path, placed):
    path = shutil.copy(placed, tmp_path / "model.pte")
    text = (placed.parent / MANIFEST).read_text()
    manifest = tmp_path / MANIFEST
    refused = 0
    arguments = {"encode": (torch.ones(3, 4),), "embed": (torch.tensor([1, 2, 3]),)}
    for seed in range(MANIFESTS):
        manifest.write_bytes(damage_manifest(text, seed))
        try:
            package = load_package(path, trust=True)
        except PipelineError as error:
            refused += 1
            assert "\n" not in str(error) and str(error).startswith("model.pte: ")
            continue
        for name, values in arguments.items():
            scale = {"scale": torch.tensor(1.0)} if name == "embed" else {}
            with suppress(PipelineError):
                package[name](*values, **scale)
            repr(package)
    assert refused > MANIFESTS // 4
    manifest.write_text("[" * 100_000)
    with pytest.raises(PipelineError, match=r"model.pte: the manifest.json next to it can't be"):
        load_package(path)
