"""The prover for keys: a sample of all states passes, and a fault in a key is found."""

import subprocess
import sys

import pytest

from pipeline.plan import keys
from tests.trust.perturbations import perturb, read_workspace
from tests.trust.prover import Prover, find_workspace, prove, sample

LIBRARIES = """
from pipeline.store.toolchain import toolchain

before = toolchain()
import executorch.exir, joblib, torch
assert toolchain() == before, set(toolchain().items()) ^ set(before.items())
"""


def check(workspace, folder, states):
    """Prove states of a workspace; return the errors."""
    prover = Prover(read_workspace(find_workspace(workspace)), folder)
    said = []
    findings = prove(prover, states(prover), said.append)
    return [str(finding) for finding in findings if finding.wrong], said


def test_every_input_is_perturbed():
    states = list(perturb(read_workspace(find_workspace("joint"))))
    kinds = {state.kind for state in states}
    assert kinds >= {"py", "yaml", "json", "npz", "toml", "field", "new", "gone", "renamed"}
    assert kinds >= {"version", "clock", "stamps", "process", "order", "folder", "workers", "cache"}
    fields = {state.what.split(": ")[1] for state in states if state.kind == "field"}
    assert len(fields) > 60 and {"target", "emit.etrecord", "validate.atol"} <= fields
    contents = [tuple(sorted(state.files.items())) for state in states if state.kind == "py"]
    assert len(set(contents)) == len(contents)


@pytest.mark.slow
def test_a_few_states(tmp_path):
    def states(prover):
        return sample(list(perturb(prover.base)), 1, 3, ["py", "gone", "folder"])

    wrong, said = check("pair", tmp_path, states)
    assert not wrong, wrong
    assert said[-1] == "3 states, 0 stale, 0 wrong"


@pytest.mark.slow
@pytest.mark.release
@pytest.mark.parametrize("workspace", ["quantized", "joint"])
def test_a_sample_of_all_states(workspace, tmp_path):
    def states(prover):
        return sample(list(perturb(prover.base, prover.variables())), 0, 3)

    wrong, _ = check(workspace, tmp_path, states)
    assert not wrong, wrong


@pytest.mark.slow
def test_importing_libraries_changes_no_key():
    subprocess.run([sys.executable, "-c", LIBRARIES], check=True, timeout=120)


def spoil():
    """Leave parts out of actions' keys."""
    real = keys.Action

    def made(kind, model, package, method, key, inputs):
        left = {name: value for name, value in key.items() if name not in FAULTS}
        return real(kind, model, package, method, left, inputs)

    keys.Action = made


# Parts of keys, each with a state that reveals their absence.
FAULTS = {
    "emit": ("field", "joint: emit.memory_planning.alignment: 1"),
    "passes": ("py", "passes/scale.py: 17: 'add' -> 'addx'"),
    "constant_methods": ("field", "joint: constant_methods: {'x': 1}"),
    "layout": ("field", "joint: emit.layout.segment_alignment: 1"),
    "measured": ("field", "joint: validate.inputs: 2"),
}


@pytest.mark.slow
def test_a_part_that_is_left_out_of_a_key_is_found(tmp_path):
    base = read_workspace(find_workspace("joint"))
    states = {(state.kind, state.what): state for state in perturb(base)}
    prover = Prover(base, tmp_path, spoil)
    assert {part: bool(prover.check(states[told]).stale) for part, told in FAULTS.items()} == (
        dict.fromkeys(FAULTS, True)
    )
