"""The benchmarks run end to end at small sizes; speed isn't tested."""

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.__main__ import CASES, main
from benchmarks.measure import BenchmarkError, Result, in_turns, machine, run
from tests.support.bench import REPOSITORY


def benchmarks(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "benchmarks", *arguments],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
    )


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """Return the output and the JSON of the two cases that compile nothing."""
    file = tmp_path_factory.mktemp("json") / "folder" / "benchmarks.json"
    done = benchmarks("--quick", "--only", "hashing", "noop", "--json", str(file))
    assert done.returncode == 0, done.stderr
    return done.stdout, json.loads(file.read_text())


@pytest.mark.slow
@pytest.mark.release
def test_figures_are_those_of_a_measurement(told):
    _, written = told
    assert [case["case"] for case in written["cases"]] == ["noop", "hashing"]
    for case in written["cases"]:
        assert math.isfinite(case["ratio"]) and case["ratio"] > 0
        seconds = [s for name, s in case["figures"].items() if name.endswith("seconds")]
        assert seconds and all(each > 0 for turns in seconds for each in turns)


@pytest.mark.slow
def test_noop_says_whether_torch_was_imported(told):
    output, written = told
    assert written["cases"][0]["figures"]["torch_imported"] is False
    assert "torch not imported" in output


@pytest.mark.slow
def test_table_has_a_verdict_for_each_case(told):
    output, written = told
    for case in written["cases"]:
        (line,) = [line for line in output.splitlines() if line.startswith(f"{case['case']} ")]
        assert line.endswith("reached" if case["ok"] else "missed")
        assert case["measured"] in line and case["to_reach"] in line


@pytest.mark.slow
def test_facts_name_no_machine_and_no_path(told):
    _, written = told
    assert written["quick"] is True
    facts = written["machine"]
    assert facts["cores"] >= 1 and facts["torch"] and facts["filesystem"] != "unknown"
    assert not any("/" in str(fact) for fact in facts.values())


def test_unknown_case_is_refused_with_the_known_ones():
    done = benchmarks("--only", "nothing")
    assert done.returncode == 2
    assert "'nothing'" in done.stderr and all(case in done.stderr for case in CASES)


def _out_of_reach(*_):
    return Result("hashing", 0.5, 0.8, False, "50 %", ">= 80 %")


def _broken(*_):
    raise BenchmarkError("the disk is full")


@pytest.mark.parametrize("case", [_out_of_reach, _broken])
@pytest.mark.parametrize("options, status", [([], 0), (["--check"], 1)])
def test_only_check_fails_for_what_is_missed(case, options, status, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("benchmarks.hashing.hashing", case)
    file = tmp_path / "benchmarks.json"
    assert main(["--only", "hashing", "--json", str(file), *options]) == status
    assert "missed" in capsys.readouterr().out
    assert json.loads(file.read_text())["cases"][0]["ok"] is False


def test_process_that_fails_is_an_error_with_its_output(tmp_path):
    with pytest.raises(BenchmarkError, match=r"(?s)exit 3.*told before"):
        run([sys.executable, "-c", "print('told before'); exit(3)"], tmp_path, {})


def test_cpu_time_of_a_process_has_that_of_its_children(tmp_path):
    burn = "import time\nwhile time.process_time() < 0.4: pass"
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {burn!r}])"
    assert run([sys.executable, "-c", code], tmp_path, {}).cpu > 0.4


def test_sides_take_turns_in_going_first():
    order = []
    given = in_turns(3, lambda n: order.append(("a", n)) or n, lambda n: order.append(("b", n)))
    assert order == [("a", 0), ("b", 0), ("b", 1), ("a", 1), ("a", 2), ("b", 2)]
    assert given[0] == [0, 1, 2]


def test_filesystem_is_that_of_the_innermost_mount():
    assert machine(Path("/proc/self"))["filesystem"] == "proc"
