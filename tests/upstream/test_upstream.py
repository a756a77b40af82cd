"""A sample of ExecuTorch's operator tests: `python -m tests.upstream` runs all of them."""

import json
import subprocess
import sys

import pytest

from tests.support.bench import REPOSITORY

pytestmark = [pytest.mark.slow, pytest.mark.release]


def test_a_sample_is_lowered_to_the_same_bytes_and_judged_rightly(tmp_path):
    """In a separate process, since a pytest run inside pytest has no streams to print to."""
    record = tmp_path / "cases.json"
    options = ["-k", "dtype", "--flow", "xnnpack", "--folder", tmp_path, "--json", record]
    command = [sys.executable, "-m", "tests.upstream", "operators/a[bd]*", *map(str, options)]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout
    cases = [json.loads(line) for line in record.read_text().splitlines()]
    assert len(cases) >= 8
    assert {case["bytes"] for case in cases} == {"bytes equal"}
