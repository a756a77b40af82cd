"""The count of packages in reduced precision counts; all of it is run by hand."""

import json
import os
import subprocess
import sys

import pytest

from tests.mutations.precision import PRECISIONS, samples
from tests.support.bench import REPOSITORY


def test_the_count_is_of_enough_packages():
    named = [(precision, name) for precision, name, _ in samples(1, "*")]
    assert len({name for _, name in named}) == len(named)
    assert {precision for precision, _ in named} == PRECISIONS.keys()
    assert sum(precision.startswith("static") for precision, _ in named) >= 24
    assert sum(precision.startswith(("fp16", "bf16")) for precision, _ in named) >= 12


@pytest.mark.slow
def test_one_package_passes_and_its_faults_are_caught(tmp_path):
    record, name = tmp_path / "verdicts.jsonl", "linear/static, exporter, per channel"
    made = subprocess.run(
        [sys.executable, "-m", "tests.mutations.precision", "--only", name, "--json", record],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=True,
        cwd=REPOSITORY,
    )
    clean, *faults = (json.loads(line) for line in record.read_text().splitlines())
    assert (clean["damage"], clean["outcome"], clean["sentences"]) == ("", "equivalent", [])
    caught = [each for each in faults if each["outcome"] == "caught"]
    changing = [each for each in faults if each["outcome"] != "equivalent"]
    assert len(caught) >= 5 and len(caught) >= len(changing) * 0.6
    counts = [1, 0, len(changing), len(caught)]
    assert [int(word) for word in made.stdout.splitlines()[-1].split()[1:]] == counts
