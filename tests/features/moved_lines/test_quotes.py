"""Moved lines change no program: nothing is measured again, and the lines are quoted anew."""

import json
import linecache
import subprocess
from types import SimpleNamespace

import pytest
import torch

from pipeline.features.moved_lines.quotes import find_quotes, quote_anew
from pipeline.program.archive import save_programs
from pipeline.program.archive_facts import describe_archive
from pipeline.program.sources import find_sources, method_sources
from pipeline.store.file_digests import FileDigests

MODEL = """\
import torch

class Net(torch.nn.Module):
    def forward(self, x):
        return (torch.sin(x) +
                torch.cos(x))
"""
PYTHON = """
import atexit, sys
atexit.register(lambda: print("torch" in sys.modules))
"""


def _stages(bench):
    """Return the names of all stages in the last run."""
    timeline = json.loads((bench.root / "build/timeline.json").read_text())
    return {event["name"] for event in timeline["traceEvents"]}


def _lines(bench):
    report = json.loads((bench.root / "build/pair/report.json").read_text())
    calls = [call for record in report["delegation"].values() for call in record["left"]]
    return [call["line"] for call in calls if call["line"]]


def test_moved_lines_measure_nothing_again(built):
    before = _lines(built)
    assert any("models/pair.py:21" in line for line in before), before
    built.edit("models/_parts.py", "SIZE", "# How wide the models are.\n\nSIZE")
    built.edit("models/pair.py", "import torch\n", "# Moved.\n\nimport torch\n")
    built.edit("models/pair.py", "        super", '        """Own the matrix."""\n        super')
    built.edit("models/pair.py", "shared = Shared()", "owner = Shared()")
    built.edit("models/pair.py", "(shared)", "(owner)")
    assert built.doit() == 0, built.output
    ran = {name for name, outcome in built.outcomes().items() if outcome != "up-to-date"}
    assert ran == {"export pair", "validate pair"}, built.outcomes()
    assert "report" in _stages(built) and "run" not in _stages(built)
    assert _lines(built) == [line.replace("pair.py:21", "pair.py:25") for line in before]


def test_other_gates_are_judged_without_torch(built):
    """So are a config with moved lines and a newly accepted baseline."""
    config = built.root / "partition_configs/pair.yaml"
    config.write_text(f"# Moved.\n{config.read_text()}validate: {{gates: {{max_size: 1MB}}}}\n")
    with open(built.root / "dodo.py", "a") as dodo:
        dodo.write(PYTHON)
    command, environment = built.command(), built.environment
    done = subprocess.run(command, cwd=built.root, env=environment, capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.endswith("False\n"), done
    assert "built    validate pair" in done.stdout
    assert "report" in _stages(built) and not {"run", "import"} & _stages(built)  # of a worker
    config.write_text(config.read_text().replace("1MB", "1B"))
    done = subprocess.run(command, cwd=built.root, env=environment, capture_output=True, text=True)
    assert done.returncode == 1 and done.stdout.endswith("False\n"), done
    assert (
        "max_size" in done.stdout and (built.root / "build/.logs/pair/validate-pair.log").exists()
    )


@pytest.fixture
def quoting(tmp_path):
    """Return a function that saves a model with this text, and returns what quotes its lines."""
    (tmp_path / "models").mkdir()

    def save(text):
        path = tmp_path / "net.py"
        path.write_text(text)
        linecache.checkcache()
        names = {}
        exec(compile(text, path, "exec"), names)
        program = torch.export.export(names["Net"](), (torch.ones(2),))
        save_programs({"forward": program}, tmp_path / "models" / "net.pt2")
        found, _ = find_sources(tmp_path / "models")
        sources = method_sources(found["net"], describe_archive)
        traced = {"net.pt2": sources["forward"].content}
        return SimpleNamespace(sources=sources, traced=traced)

    return save, SimpleNamespace(root=tmp_path, file_digests=FileDigests())


def test_lines_of_another_archive_of_the_same_program(quoting):
    save, workspace = quoting
    inputs = save(MODEL)
    lines = [f"torch.cos(x))  # net.py:{6}, in Net.forward", "of net.py"]
    record = {"left": [{"line": lines[0]}], "note": f'"{lines[0]}"; {lines[1]}'}
    quotes = json.loads(json.dumps(find_quotes(record, inputs, workspace)))
    assert quotes["complete"] and quote_anew(record, quotes, inputs, workspace) == record
    moved = save(f"# Moved.\n{MODEL}")
    assert quote_anew(record, quotes, moved, workspace) == json.loads(
        json.dumps(record).replace("net.py:6", "net.py:7")
    )


def test_what_cannot_be_quoted_anew_is_measured_again(quoting):
    """Covers a line split in two, and one that no known node comes from."""
    save, workspace = quoting
    inputs = save(MODEL.replace("+\n                torch", "+ torch"))
    line = "return (torch.sin(x) + torch.cos(x))  # net.py:5, in Net.forward"
    quotes = find_quotes({"line": line}, inputs, workspace)
    assert quotes["complete"] and line in quotes["lines"]
    unknown = find_quotes({"note": "see net.py:1"}, inputs, workspace)
    assert not unknown["complete"]
    split = save(MODEL)
    assert quote_anew({"line": line}, quotes, split, workspace) is None
    assert quote_anew({"note": "see net.py:1"}, unknown, split, workspace) is None
