"""A build without each feature: its folder is deleted from a copy of the package, and two packages
are built and validated."""

import os
import shutil
from pathlib import Path

import pytest

import pipeline
import pte_pipeline
from pipeline.moments import find_features
from tests.support.bench import bench_of
from tests.support.resident import run_python

NAMES = [feature.name for feature in find_features()]
# A line of a config that needs a feature, by the feature, and the path of its key.
USES = {
    "bundles": ("validate: {bundle: true}", "validate.bundle"),
    "contracts": ("validate: {gates: {runs_on: [phone]}}", "validate.gates.runs_on"),
    "etrecord": ("emit: {etrecord: true}", "emit.etrecord"),
    "families": ("family: ours", "family"),
    "gates": ("validate: {gates: {max_size: 1MB}}", "validate.gates"),
    "inspection": ("validate: {gates: {max_planned_memory: 2MB}}", "validate.gates.max_planned"),
    "latency": ("validate: {latency: {seconds: 1}}", "validate.latency"),
}
# A setting in the environment that needs a feature, and what a build says without it.
SETTINGS = {
    "cluster": (
        {"PTE_PIPELINE_EXECUTOR": "dask"},
        "PTE_PIPELINE_EXECUTOR: this installation has no executor 'dask'; unset it",
    ),
    "remote": (
        {"PTE_PIPELINE_REMOTE": "file:///nowhere"},
        'PTE_PIPELINE_REMOTE: this installation has no feature "remote"; unset it',
    ),
}
# The resident process has modules of this checkout, which a new Python would find in the copy.
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
    """A copy of the package, with what Python compiled of it."""
    folder = tmp_path_factory.mktemp("installation")
    for package in (pipeline, pte_pipeline):
        source = Path(package.__file__).parent
        shutil.copytree(source, folder / source.name)
    return folder


@pytest.fixture
def without(installation, tmp_path, request):
    """A function that runs doit in a workspace, in an installation without a feature."""
    folder = installation / "pipeline" / "features" / request.param
    removed = shutil.move(folder, tmp_path / request.param)
    bench = bench_of("archives", tmp_path)

    def doit(*words, **variables):
        arguments = ("-c", DOIT, str(installation), *words)
        environment = {**bench.environment, "PYTHONPATH": os.fspath(installation), **variables}
        done = run_python(*arguments, cwd=bench.root, env=environment, merged=True)
        return done.returncode, done.stdout

    yield request.param, bench, doit
    shutil.move(removed, folder)


@pytest.mark.slow
@pytest.mark.parametrize("without", NAMES, indirect=True)
def test_packages_are_built_and_validated_without(without):
    name, bench, doit = without
    status, said = doit()
    assert status == 0, said
    assert said.count("passed") == 2
    for package in ("one", "many"):
        assert (bench.root / "build" / package / f"{package}.pte").is_file()
    if name in USES:
        line, key = USES[name]
        with (bench.root / "partition_configs" / "one.yaml").open("a") as config:
            config.write(f"{line}\n")
        status, said = doit("check", "one")
        assert status == 1
        assert f'this installation has no feature "{name}"; leave the key out' in said
        assert key in said
    if name in SETTINGS:
        variables, message = SETTINGS[name]
        status, said = doit(**variables)
        assert status == 3
        assert message in said
    for verb in next(f for f in find_features() if f.name == name).verbs:
        status, said = doit(verb.name)
        assert status == 3
        assert f"no task '{verb.name}'" in said
