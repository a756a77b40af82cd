"""A team at work: random edits, branches, renames and builds in two checkouts with one store.

After each build, the packages must equal those of a build from scratch, the exit status must say
whether all is well, and `doit plan` must have predicted the run. `TEAM_STEPS=1000` takes that many
steps.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from tests.support.team import (
    LIE,
    MODELS,
    VERSIONS,
    Added,
    Checkout,
    Oracle,
    Package,
    Sources,
    find_lies,
    make_checkout,
    read_plan,
)

STEPS = int(os.environ.get("TEAM_STEPS", "30"))
AT_A_TIME = 15
NAMES = ("ada", "ben", "cleo")
SIDES = st.sampled_from((0, 1))
BRANCHES = st.sampled_from(("main", "topic"))
PACKAGES = st.sampled_from(NAMES)
MODEL = st.sampled_from((*MODELS, *MODELS, "none"))


@pytest.fixture(scope="module")
def versions(tmp_path_factory):
    """A folder with versions of the model, exported once."""
    folder = tmp_path_factory.mktemp("versions")
    for version in (*VERSIONS, LIE):
        program = torch.export.export(Added(float(version)), (torch.ones(2),))
        torch.export.save(program, folder / f"{version}.pt2")
    return folder


class Team(RuleBasedStateMachine):
    versions: Path
    oracle: Oracle

    @initialize()
    def begin(self):
        self.folder = Path(tempfile.mkdtemp(dir=self.versions.parent))
        store = self.folder / "store"
        self.checkouts = [make_checkout(self.folder / s, store, self.versions) for s in "ab"]
        first = Sources({"ada": Package(), "ben": Package("exported")})
        self.branches = {"main": first, "topic": first}
        self.current = ["main", "topic"]

    def teardown(self):
        if hasattr(self, "folder"):
            shutil.rmtree(self.folder)

    # What people edit

    @rule(side=SIDES, version=st.sampled_from(VERSIONS), seed=st.sampled_from(VERSIONS))
    def edit_data(self, side, version, seed):
        self.edit(side, version=version, seed=seed)

    @rule(side=SIDES, base=st.integers(0, 1))
    def edit_base(self, side, base):
        self.edit(side, base=base)

    @rule(side=SIDES, name=PACKAGES, model=MODEL, constant=st.integers(0, 1), comment=st.text("ab"))
    def edit_config(self, side, name, model, constant, comment):
        packages = dict(self.sources(side).packages)
        packages[name] = Package(model, constant, comment)
        self.edit(side, packages=packages)

    @rule(side=SIDES, name=PACKAGES, new=PACKAGES)
    def rename_config(self, side, name, new):
        packages = dict(self.sources(side).packages)
        if name in packages:
            packages[new] = packages.pop(name)
            self.edit(side, packages=packages)

    @rule(side=SIDES, name=PACKAGES)
    def remove_config(self, side, name):
        packages = dict(self.sources(side).packages)
        packages.pop(name, None)
        if packages:
            self.edit(side, packages=packages)

    @rule(side=SIDES, branch=BRANCHES)
    def switch(self, side, branch):
        self.current[side] = branch

    # What they do with builds

    @rule(side=SIDES, name=PACKAGES)
    def damage(self, side, name):
        package = self.checkouts[side].root / "build" / name / f"{name}.pte"
        if package.exists():
            package.chmod(0o644)
            package.write_bytes(b"damaged")

    @rule(side=SIDES, name=st.sampled_from(("", *NAMES)))
    def clean(self, side, name):
        checkout = self.check_out(side)
        if not name:
            shutil.rmtree(checkout.root / "build", ignore_errors=True)
        elif name in self.sources(side).packages:
            assert checkout.doit("clean", f"lower:{name}") == 0, checkout.output

    @rule(
        side=SIDES,
        words=st.sampled_from(
            ("", "lower", "train fetch lower", "fetch lower validate release", "-n 2 release")
        ),
    )
    def build_all(self, side, words):
        checkout = self.check_out(side)
        status = checkout.doit(*words.split())
        self.check(side, status, sorted(self.sources(side).packages), "release" in words)

    @rule(side=SIDES, name=PACKAGES)
    def build_one(self, side, name):
        if name in self.sources(side).packages:
            checkout = self.check_out(side)
            self.check(side, checkout.doit("lower", name), [name])

    @rule(side=SIDES)
    def build_as_planned(self, side):
        checkout = self.check_out(side)
        sources = self.sources(side)
        is_sound = all(map(sources.is_sound, sources.packages))
        assert checkout.doit("plan") == (not is_sound), checkout.output
        plan = read_plan(checkout.output)
        self.check(side, checkout.doit("lower", "validate"), sorted(sources.packages))
        outcomes = {}
        for title, outcome in checkout.outcomes().items():
            if title.startswith("export") or sources.is_sound(title.split()[1].split("/")[0]):
                outcomes[title] = outcome
        assert find_lies(plan, outcomes) == []
        if is_sound:
            assert checkout.doit("lower", "validate") == 0
            assert f"up to date: {len(sources.packages)} package" in checkout.output

    # What must hold

    def sources(self, side) -> Sources:
        return self.branches[self.current[side]]

    def edit(self, side, **changes):
        self.branches[self.current[side]] = replace(self.sources(side), **changes)

    def check_out(self, side) -> Checkout:
        self.checkouts[side].write(self.sources(side))
        return self.checkouts[side]

    def check(self, side, status, names, released=False):
        checkout = self.checkouts[side]
        sources = self.sources(side)
        is_sound = all(map(sources.is_sound, names))
        assert bool(status) == (not is_sound), checkout.output
        for name in filter(sources.is_sound, names):
            expected = self.oracle.bytes_of(sources, name)
            assert checkout.bytes_of(name, f"{name}.pte") == expected, checkout.output
            if released:
                shipped = checkout.root / "out" / f"{name}.pte"
                assert shipped.read_bytes() == expected, checkout.output


@pytest.mark.slow
@pytest.mark.release
def test_builds_of_a_team_are_those_from_nothing(versions, tmp_path):
    Team.versions = versions
    Team.oracle = Oracle(tmp_path, versions)
    run_state_machine_as_test(
        Team,
        settings=settings(
            max_examples=max(1, STEPS // AT_A_TIME),
            stateful_step_count=AT_A_TIME,
            phases=(Phase.generate,),
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
