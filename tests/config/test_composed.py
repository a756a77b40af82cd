"""Packages of composed configs, built as a user builds them."""

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pipeline.plan.status import link_status
from tests.plan.test_plan import make_plan
from tests.support.bench import Bench

pytestmark = pytest.mark.slow

BASE = """\
model: pair
target: ${TARGET:-android}
defaults:
  partitioners: []
constant_methods: {get_size: 8}
"""
CONFIGS = {
    "_base": BASE,
    "_other": "target: other\n",
    "phone": "extends: _base\nmethods: {encode: {}, decode: {partitioners: [xnnpack]}}\n",
    "many": """\
extends: _base
methods: {encode: {}, decode: {}}
target: ${matrix.os}-${ARCH:-arm64}
matrix:
  os: [android, ios]
  delegate:
    none: {}
    xnnpack:
      methods: {decode: {partitioners: [xnnpack]}}
""",
}
MADE = [
    *("many-android-none", "many-android-xnnpack", "many-ios-none", "many-ios-xnnpack"),
    *("pair", "phone"),
]


@pytest.fixture(scope="module")
def _composed(_built, tmp_path_factory):
    """The sample `pair` with packages that share a base, built."""
    root = tmp_path_factory.mktemp("composed") / "pair"
    bench = Bench(Path(shutil.copytree(_built.root, root)))
    listed = '[tool.pte-pipeline]\nvariables = ["ARCH", "OS", "TARGET"]\n'
    (root / "pyproject.toml").write_text(listed)
    for stem, text in CONFIGS.items():
        (root / "partition_configs" / f"{stem}.yaml").write_text(text)
    assert bench.doit() == 0, bench.output
    return bench


@pytest.fixture
def composed(_composed, tmp_path):
    """A copy, which has other inodes, after its first plan."""
    bench = Bench(Path(shutil.copytree(_composed.root, tmp_path / "pair")), _composed.output)
    time.sleep(0.2)  # recent changes aren't remembered
    assert bench.doit() == 0
    assert bench.output == f"up to date: {len(MADE)} packages\n"
    return bench


def stale(bench):
    """Return the packages that need linking, and the reasons."""
    plan = make_plan(bench)
    statuses = {package: link_status(plan, package) for package in plan.packages}
    return {p: status.reason for p, status in statuses.items() if status.state != "up-to-date"}


def read_again(bench, monkeypatch):
    """Return the files that a plan parses."""
    from pipeline.config import compose

    read = []
    load = compose.load_nodes
    monkeypatch.setattr(
        compose, "load_nodes", lambda content, file: read.append(file) or load(content, file)
    )
    plan = make_plan(bench)
    for package in plan.packages:
        plan.configs.summary(package)
    return sorted(name.partition("/")[2] for name in read)


def test_a_matrix_makes_packages(_composed):
    outcomes = _composed.outcomes()
    assert [name for name in MADE if f"link {name}" in outcomes] == MADE
    assert "_base" not in _composed.output
    for name in MADE:
        assert (_composed.root / "build" / name / f"{name}.pte").stat().st_size > 0
    manifest = json.loads(_composed.bytes_of("many-ios-xnnpack", "manifest.json"))
    assert manifest["target"] == "ios-arm64"
    assert _composed.bytes_of("phone", "phone.pte") == _composed.bytes_of("pair", "pair.pte")
    plain = _composed.bytes_of("many-android-none", "many-android-none.pte")
    assert plain != _composed.bytes_of("pair", "pair.pte")


def test_nothing_to_do_reads_and_imports_nothing(composed):
    code = (
        "import sys; sys.argv = ['doit']\n"
        "from doit.doit_cmd import DoitMain\n"
        "assert DoitMain().run([]) == 0\n"
        "heavy = {'torch', 'joblib', 'pydantic', 'yaml'}\n"
        "heavy |= {'pipeline.config.compose', 'pipeline.config.parser'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=composed.root, env=composed.environment, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"up to date: {len(MADE)} packages\n"


def test_an_edited_base_makes_stale_what_extends_it_and_nothing_else(composed, monkeypatch):
    composed.edit("partition_configs/_base.yaml", "size: 8", "size: 9")
    assert sorted(stale(composed)) == [name for name in MADE if name != "pair"]
    assert read_again(composed, monkeypatch) == ["_base.yaml", "many.yaml", "phone.yaml"]
    composed.edit("partition_configs/_base.yaml", "size: 9", "size: 8")
    assert stale(composed) == {}
    composed.edit("partition_configs/_other.yaml", "other", "another")
    assert read_again(composed, monkeypatch) == []


def test_a_base_that_is_extended_from_now_on_is_seen(composed):
    composed.edit("partition_configs/_base.yaml", "model: pair", "extends: _other\nmodel: pair")
    composed.edit("partition_configs/_base.yaml", "target: ${TARGET:-android}\n", "")
    assert sorted(stale(composed)) == ["phone"]  # the others set a target themselves


def test_a_comment_in_a_base_changes_nothing(composed):
    composed.edit("partition_configs/_base.yaml", "model", "# the same\nmodel")
    assert stale(composed) == {}
    assert composed.doit() == 0
    assert composed.output == f"up to date: {len(MADE)} packages\n"


def test_a_second_base_of_the_name_and_a_missing_one_are_seen(composed):
    configs = composed.root / "partition_configs"
    (configs / "_base.yml").write_text(BASE)
    plan = make_plan(composed)
    assert "is both" in str(plan.problems("phone")[0])
    (configs / "_base.yml").unlink()
    (configs / "_base.yaml").unlink()
    (problem,) = make_plan(composed).problems("phone")
    assert problem.what == "no config '_base'"
    (configs / "_base.yaml").write_text(BASE)
    assert stale(composed) == {}


def test_a_variable_that_changes_is_seen(composed, monkeypatch):
    monkeypatch.setenv("UNRELATED", "x")
    assert read_again(composed, monkeypatch) == []
    monkeypatch.setenv("TARGET", "phone")
    assert stale(composed) == {"phone": "config target: android -> phone"}
    monkeypatch.setenv("TARGET", "android")  # the default
    assert stale(composed) == {}
    monkeypatch.setenv("ARCH", "riscv")
    assert sorted(stale(composed)) == [name for name in MADE if name.startswith("many")]


def test_a_variable_rebuilds_and_setting_it_back_is_a_hit(composed):
    assert composed.doit("lower", TARGET="phone") == 0, composed.output
    assert composed.outcomes()["link phone"] == "refit"
    assert composed.outcomes()["link many-ios-xnnpack"] == "up-to-date"
    assert json.loads(composed.bytes_of("phone", "manifest.json"))["target"] == "phone"
    assert composed.doit("lower") == 0
    assert composed.outcomes()["link phone"] == "hit"
    assert composed.doit("lower", TARGET="phone") == 0
    assert composed.doit("lower", TARGET="phone") == 0
    assert composed.output == f"up to date: {len(MADE)} packages\n"


def test_values_of_variables_are_not_kept_as_they_are(composed, monkeypatch):
    monkeypatch.setenv("TARGET", "a-secret-of-ci")
    plan = make_plan(composed)
    assert plan.configs.summary("phone")
    plan.remember()
    assert "a-secret-of-ci" not in (composed.root / "build" / ".files.json").read_text()


def test_a_variable_of_a_matrix_changes_which_packages_there_are(composed, monkeypatch):
    composed.edit("partition_configs/many.yaml", "[android, ios]", "[android, '${OS:-ios}']")
    assert stale(composed) == {}
    monkeypatch.setenv("OS", "linux")
    assert make_plan(composed).packages[2:4] == ("many-linux-none", "many-linux-xnnpack")
    assert list(stale(composed)) == ["many-linux-none", "many-linux-xnnpack"]


def test_mistakes_are_never_remembered(composed, monkeypatch):
    composed.edit("partition_configs/_base.yaml", "get_size: 8", "get_size: {}")
    for _ in range(2):
        plan = make_plan(composed)
        assert plan.problems("phone") and plan.problems("many-ios-xnnpack")
        plan.remember()
    assert read_again(composed, monkeypatch) == ["_base.yaml", "many.yaml", "phone.yaml"]


def test_a_mistake_of_a_base_is_reported_once(composed):
    composed.edit("partition_configs/_base.yaml", "partitioners: []", "partitioners: [xnpack]")
    reported = (
        "partition_configs/_base.yaml:4: defaults.partitioners[0]: unknown partitioner 'xnpack'"
    )
    faulty = "many-android-none, many-android-xnnpack, many-ios-none, many-ios-xnnpack, phone"
    assert composed.doit("lower") == 1
    assert composed.output.count(reported) == 1  # at once, and not repeated at the end
    assert "lower:phone failed: " not in composed.output
    assert "link many-android-none, link many-android-xnnpack, link many-ios-none and 2 more\n" in (
        composed.output
    )
    assert composed.outcomes()["link pair"] == "up-to-date"
    errors = {a["package"]: a["error"] for a in composed.actions() if a["outcome"] == "failed"}
    assert len(errors) == 5 and all(reported in error for error in errors.values())
    assert composed.doit("plan") == 1
    assert composed.output.count(reported) == 1
    assert f"plan: 5 packages with mistakes: {faulty} [PTE707]\n" in composed.output


def test_explain_names_the_config_key(composed):
    composed.edit("partition_configs/_base.yaml", "partitioners: []", "partitioners: [xnnpack]")
    assert composed.doit("explain", "phone/encode") == 0
    assert "  - config methods.encode.partitioners: [] -> " in composed.output
    assert composed.doit("explain", "many-android-xnnpack") == 0
    assert "compile many-android-xnnpack/decode: current" in composed.output


@pytest.mark.parametrize("words", [["--resolved", "phone"], ["phone", "--resolved"]], ids=" ".join)
def test_the_resolved_view_is_printed(composed, words):
    assert composed.doit("plan", *words, TARGET="mine") == 0
    lines = [" ".join(line.split()) for line in composed.output.splitlines()]
    assert lines[:8] == [
        "# phone: partition_configs/phone.yaml",
        "model: pair # partition_configs/_base.yaml:1",
        "# export: {} # default",
        "target: mine # partition_configs/_base.yaml:2, ${TARGET:-android}",
        "# file: none # default",
        "methods:",
        "encode:",
        "partitioners: [] # partition_configs/_base.yaml:4, defaults",
    ]
    assert "# quantize: none # default" in lines
    assert "# family: none # default" in lines  # belongs to a feature, so it comes after the core's
    assert "- xnnpack # partition_configs/phone.yaml:2" in lines
    assert "get_size: 8 # partition_configs/_base.yaml:5" in lines


def test_the_resolved_view_shows_what_it_can(composed):
    composed.edit("partition_configs/phone.yaml", "decode", "de code")
    assert composed.doit("plan", "--resolved") == 1
    assert "# many-ios-xnnpack: partition_configs/many.yaml\n" in composed.output
    assert (
        "plan: partition_configs/phone.yaml:2: methods.'de code': is 'de code', must be "
        in composed.output
    )
    assert composed.doit("plan", "--resolved", "fone") == 1
    assert "plan: no package 'fone'; did you mean 'phone'?" in composed.output


def test_two_files_that_make_one_package_fail_it_alone(composed):
    shutil.copy(
        composed.root / "partition_configs" / "pair.yaml",
        composed.root / "partition_configs" / "many-ios-xnnpack.yaml",
    )
    assert composed.doit("lower") == 1
    assert (
        "partition_configs/many.yaml: makes the package 'many-ios-xnnpack', "
        "as partition_configs/many-ios-xnnpack.yaml does; keep one"
    ) in composed.output
    outcomes = composed.outcomes()
    assert outcomes.pop("link many-ios-xnnpack") == "failed"
    assert {outcome for name, outcome in outcomes.items() if "link" in name} == {"up-to-date"}
