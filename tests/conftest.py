"""Programs and workspaces that several tests use. All are real; the larger are made once."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent
SAMPLES = Path(__file__).resolve().parent / "samples"


@pytest.fixture(scope="session")
def repository() -> Path:
    return REPOSITORY


@pytest.fixture
def sample(tmp_path):
    """Copies a workspace of tests/samples into a folder of the test's own."""

    def copy(name: str) -> Path:
        return Path(shutil.copytree(SAMPLES / name, tmp_path / name))

    return copy
