"""A metric on a board: a real sshd on loopback with this machine's shell."""

import json
import os

import pytest

from tests.features.metrics.test_builds import CONFIG, MODEL, TOP1
from tests.features.native.boards import board_server  # noqa: F401
from tests.support.bench import SAMPLES, Bench

pytestmark = [pytest.mark.slow, pytest.mark.release]
SETTINGS = '[tool.pte-pipeline.native_boards]\npi5 = "{}"\n'


def test_a_metric_runs_on_a_board_and_lets_go_of_it(server, tmp_path):
    bench = Bench(tmp_path / "workspace", allow="not-run")
    for name, text in {
        "dodo.py": (SAMPLES / "pair" / "dodo.py").read_text(),
        "models/tiny.py": MODEL,
        "metrics/top1.py": TOP1,
        "right.txt": "97",
        "pyproject.toml": SETTINGS.format(server.address),
        "partition_configs/tiny.yaml": CONFIG.format(
            quantize="", limits="device: pi5, min: 0.9"
        ).replace("validate: {", "validate: {devices: [pi5], "),
    }.items():
        path = bench.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    path = f"{tmp_path / 'bin'}:{os.environ['PATH']}"
    assert bench.doit("tiny", PATH=path) == 0, bench.output
    report = json.loads((bench.root / "build" / "tiny" / "report.json").read_text())
    (row,) = report["metrics"]
    assert (row["device"], row["verdict"], row["value"], row["drop"]) == ("pi5", "passed", 1, 0)
    assert (server.folder / "holder").read_text() == ""  # the board is free again
    server.stop()
    assert bench.doit("tiny", PATH=path) == 0, bench.output  # cached, so the board isn't asked
    bench.edit("right.txt", "97", "96")
    assert bench.doit("tiny", PATH=path) == 1
    assert "metric top1: pi5: " in bench.output  # and the line quotes ssh
