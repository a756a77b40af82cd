"""Builds without each feature: its folder is deleted from a copy of the package, and two packages
are built and validated.

Several features are deleted at once, each of them twice, with different others. So if a feature
needs another one, a build fails in which only the other one is missing. Before a release, each
feature is deleted alone, too.

Families of backends add nothing but catalogue entries, so they are deleted all at once, and the
catalogue is inspected without each one.
"""

import json
import os
import shutil
from importlib import import_module
from pathlib import Path

import pytest

import pipeline
import pte_pipeline
from pipeline.backends import BACKENDS
from pipeline.backends.families import find_families, find_folder
from pipeline.moments import find_features
from tests.support.bench import bench_of
from tests.support.matrix import in_tiers
from tests.support.resident import run_python

PACKAGES = ("one", "many")
UNTIMED = "validate: {latency: {seconds: 0}}\n"  # timing takes longer than running
NAMES = [feature.name for feature in find_features() if not feature.entries]
SIZE = 8  # features that are deleted at once, and fewer than the groups of each kind
NEIGHBOURS = [NAMES[start : start + SIZE] for start in range(0, len(NAMES), SIZE)]
# No two features that are together in one of the groups above are together in one of these.
GROUPS = [*NEIGHBOURS, *(NAMES[start :: len(NEIGHBOURS)] for start in range(len(NEIGHBOURS)))]
# For each feature, a config line that needs it, and the path of the line's key.
USES = {
    "bundles": ("validate: {bundle: true}", "validate.bundle"),
    "contracts": ("validate: {gates: {runs_on: [phone]}}", "validate.gates.runs_on"),
    "etrecord": ("emit: {etrecord: true}", "emit.etrecord"),
    "families": ("family: ours", "family"),
    "gates": ("validate: {gates: {max_size: 1MB}}", "validate.gates"),
    "inspection": ("validate: {gates: {max_planned_memory: 2MB}}", "validate.gates.max_planned"),
    "latency": ("validate: {latency: {seconds: 1}}", "validate.latency"),
    "matrix": ("matrix: {size: [1, 2]}", "matrix"),
    "module_selection": ("    modules: [encoder]", "methods.decode.modules"),
    "operators": ("operators: [team_ops]", "operators"),
    "passes": (
        "emit: {passes: ['fusions:FuseGelu'], memory_planning: {algorithm: 'plans:pack'}}",
        "emit.passes",
    ),
    "quantization": (
        "    quantize: {quantizer: xnnpack, dynamic: true}",
        "methods.decode.quantize",
    ),
    "toolchains": ("toolchain: default", "toolchain"),
}
# An environment setting that needs a feature, and the build's message without the feature.
SETTINGS = {
    "cluster": (
        {"PTE_PIPELINE_EXECUTOR": "dask"},
        "PTE_PIPELINE_EXECUTOR: this installation has no executor 'dask'; unset it",
    ),
    "operators": (
        {"PTE_PIPELINE_OPERATORS": "team_ops"},
        'PTE_PIPELINE_OPERATORS: this installation has no feature "operators"; unset it',
    ),
    "remote": (
        {"PTE_PIPELINE_REMOTE": "file:///nowhere"},
        'PTE_PIPELINE_REMOTE: this installation has no feature "remote"; unset it',
    ),
    "signing": (
        {
            "PTE_PIPELINE_REMOTE": "file:///nowhere",
            "PTE_PIPELINE_REMOTE_TRUST": "unsigned",
        },
        'a remote needs keys, and this installation has no feature "signing"; unset it',
    ),
    "unknown_toolchain": (
        {"PTE_PIPELINE_UNKNOWN_TOOLCHAIN": "allow"},
        'PTE_PIPELINE_UNKNOWN_TOOLCHAIN: this installation has no feature "unknown_toolchain"',
    ),
}
# The message about these needs another feature. A group that deletes both leaves it to the others.
GIVEN_BY = {**dict.fromkeys(USES, "check"), "inspection": "gates", "signing": "remote"}
LIST_BACKENDS = """
import sys
for name in [*sys.modules]:
    if name.partition(".")[0] in ("pipeline", "pte_pipeline"):
        del sys.modules[name]
sys.path.insert(0, "{installation}")
from pipeline.backends import BACKENDS
print(*BACKENDS)
"""
# The resident process has loaded this checkout's modules; a new Python would find the copy's.
DOIT = """
import sys
for name in [*sys.modules]:
    if name.partition(".")[0] in ("pipeline", "pte_pipeline"):
        del sys.modules[name]
sys.path.insert(0, sys.argv[1])
import pipeline
assert pipeline.__file__.startswith(sys.argv[1])
from doit.doit_cmd import DoitMain
sys.exit(DoitMain().run(sys.argv[2:]))
"""


@pytest.fixture(scope="module")
def installation(tmp_path_factory):
    """A copy of the package, including Python's bytecode."""
    folder = tmp_path_factory.mktemp("installation")
    for package in (pipeline, pte_pipeline):
        source = Path(package.__file__).parent
        shutil.copytree(source, folder / source.name)
    return folder


@pytest.fixture
def run_doit(installation, tmp_path):
    """A workspace, and a function that runs doit there with the copy."""
    bench = bench_of("archives", tmp_path)

    def doit(*words, **variables):
        arguments = ("-c", DOIT, str(installation), *words)
        environment = {**bench.environment, "PYTHONPATH": os.fspath(installation), **variables}
        done = run_python(*arguments, cwd=bench.root, env=environment, merged=True)
        return done.returncode, done.stdout

    return bench, doit


@pytest.fixture
def without(installation, run_doit, tmp_path, request):
    """Return the names of missing features, a workspace, and a function that runs doit there."""
    features = installation / "pipeline" / "features"
    removed = {name: shutil.move(features / name, tmp_path / name) for name in request.param}
    yield request.param, *run_doit
    for name, folder in removed.items():
        shutil.move(folder, features / name)


def test_two_features_are_deleted_together_at_most_once():
    for name in NAMES:
        others = [other for group in GROUPS if name in group for other in group if other != name]
        assert len(others) == len({*others})
        assert sum(name in group for group in GROUPS) == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    "without",
    in_tiers([*GROUPS, *([name] for name in NAMES)], NEIGHBOURS),
    ids="-".join,
    indirect=True,
)
def test_packages_are_built_and_validated_without(without):
    names, bench, doit = without
    texts = {}
    for package in PACKAGES:
        config = bench.root / "partition_configs" / f"{package}.yaml"
        texts[package] = config.read_text()
        if "latency" not in names:
            config.write_text(texts[package] + UNTIMED)
    status, said = doit("-n", "1")  # each additional worker takes 0.8 CPU seconds
    assert status == 0, said
    for package in PACKAGES:
        assert (bench.root / "build" / package / f"{package}.pte").is_file()
        verdicts = [method["verdict"] for method in read_report(bench, package)["methods"]]
        assert verdicts == ["passed"] * 2
    assert ("passed" in said) == ("summary" not in names)
    verbs = {verb.name for f in find_features() if f.name in names for verb in f.verbs}
    if "cases" in names:
        for method in read_report(bench, "one")["methods"]:
            reasons = {skipped["origin"]: skipped["reason"] for skipped in method["skipped"]}
            assert reasons["zeros"] == 'this installation has no feature "cases"'
    if "exporters" in names:
        (bench.root / "models" / "new.py").write_text("def export_methods(): ...\n")
        config = bench.root / "partition_configs" / "new.yaml"
        config.write_text("model: new\nmethods: {forward: {partitioners: []}}\n")
        status, said = doit("lower", "new")
        assert status != 0
        assert "export new: this installation has no feature for exporters" in said
        config.unlink()
    if "references" in names:
        recorded = bench.root / "golden" / "one" / "encode.npz"
        recorded.parent.mkdir(parents=True)
        recorded.write_bytes(b"")
        doit("validate", "one")
        methods = read_report(bench, "one")["methods"]
        (reference,) = (method["reference"] for method in methods if "reference" in method)
        assert reference["verdict"] == "not run"
        assert reference["reason"] == 'this installation has no feature "references"'
    if "config_edits" in names:
        for words in (("tune", "--write", "best"), ("sensitivity", "one")):
            if words[0] not in verbs:
                status, said = doit(*words)
                assert status == 1
                assert 'this installation has no feature "config_edits"' in said
    told = {name for name in names if GIVEN_BY.get(name) not in names}
    for name in sorted(told & SETTINGS.keys()):
        variables, message = SETTINGS[name]
        status, said = doit(**variables)
        assert status == 3
        assert message in said
    for name in sorted(told & USES.keys()):
        line, key = USES[name]
        config = bench.root / "partition_configs" / "one.yaml"
        config.write_text(f"{texts['one']}{line}\n")
        status, said = doit("check", "one")
        assert status == 1
        assert f'this installation has no feature "{name}"; leave the key out' in said
        assert key in said
        if name == "passes":
            assert "emit.memory_planning.algorithm: is 'plans:pack', must be greedy" in said
            assert 'or a list of these: this installation has no feature "passes"' in said
    for verb in sorted(verbs):
        status, said = doit(verb)
        assert status == 3
        assert f"no task '{verb}'" in said


def read_report(bench, package):
    return json.loads((bench.root / "build" / package / "report.json").read_bytes())


@pytest.fixture
def without_families(installation, tmp_path):
    """The copy of the package without some families of backends."""
    removed = {}

    def remove(*families):
        for family in families:
            place = find_folder(family).relative_to(Path(pipeline.__file__).parent)
            removed[family] = installation / "pipeline" / place
            shutil.move(removed[family], tmp_path / family)

    yield remove
    for family, folder in removed.items():
        shutil.move(tmp_path / family, folder)


@pytest.mark.slow
def test_packages_are_built_and_validated_without_any_family_of_backends(
    run_doit, without_families
):
    bench, doit = run_doit
    without_families(*find_families())
    status, output = doit()
    assert status == 0, output
    assert output.count("passed") == 2
    config = bench.root / "partition_configs" / "one.yaml"
    config.write_text(config.read_text().replace("[]", "[xnnpack]", 1))
    status, output = doit("check", "one")
    assert status == 1
    assert "unknown partitioner 'xnnpack'" in output


@pytest.mark.slow
@pytest.mark.parametrize("family", find_families())
def test_the_catalogue_lacks_only_a_family_that_is_deleted(family, installation, without_families):
    without_families(family)
    module = import_module(find_families()[family])
    own = {entry.name for entry in getattr(module, "ENTRIES", ())}
    program = LIST_BACKENDS.format(installation=str(installation))
    listed = run_python("-c", program).stdout.split()
    assert {*listed} == {*BACKENDS} - own
