"""Removing a file during a run fails only the actions that need it, each with a one-line error."""

import shutil

import pytest


@pytest.fixture
def three(bench):
    """The model `pair`, whose export removes a file, and two packages of another model."""
    pair = bench("pair")
    for folder, suffix in (("models", "py"), ("partition_configs", "yaml")):
        source = pair.root / folder / f"pair.{suffix}"
        for name in ("other", "third"):
            shutil.copy(source, source.with_name(f"{name}.{suffix}"))
    for name in ("other", "third"):
        pair.edit(f"partition_configs/{name}.yaml", "model: pair", f"model: {name}")
    return pair


@pytest.mark.slow
@pytest.mark.parametrize(
    ("removed", "line"),
    [
        (
            "partition_configs/third.yaml",
            "partition_configs/third.yaml: was removed during the run",
        ),
        ("models/third.py", "models/: model 'third' was removed; run again"),
    ],
)
def test_other_packages_are_built(three, removed, line):
    with open(three.root / "models" / "pair.py", "a") as exporter:
        exporter.write(f"import os\nos.unlink({str(three.root / removed)!r})\n")
    assert three.doit("lower") == 1, three.output
    assert line in three.output and "Traceback" not in three.output
    assert (three.root / "build" / "other" / "other.pte").exists()
    assert three.outcomes()["link other"] == "built"
