"""Which packages form a family, what decides which content they share, and the mistakes."""

import pytest

from pipeline.features.families.planning import FamilyPlanning
from pipeline.features.provenance.materials import find_materials
from pipeline.plan.plan import Plan
from pipeline.store.store import Store
from pipeline.store.workspace import Workspace
from tests.support.bench import bench_of

MODEL = "model: one\nmethods:\n  encode: {partitioners: []}\n  decode: {partitioners: []}\n"


@pytest.fixture
def archives(tmp_path):
    return bench_of("archives", tmp_path)


def plan_of(archives, **families):
    """Return a plan of packages, each with its `family`."""
    for path in (archives.root / "partition_configs").iterdir():
        path.unlink()
    for package, family in families.items():
        text = MODEL + (f"family: {family}\n" if family else "")
        (archives.root / "partition_configs" / f"{package}.yaml").write_text(text)
    return Plan(Workspace(archives.root, Store(archives.store), 1))


def links(plan):
    return {package: plan.link_digest(package) for package in plan.packages}


def told(plan, package):
    return [str(problem).partition(": ")[2] for problem in plan.problems(package)]


def test_a_package_decides_with_all_of_its_family(archives):
    two = links(plan_of(archives, a="x", b="x", c="y", d=None))
    three = links(plan_of(archives, a="x", b="x", c="x", d=None))
    changed = {package for package in two if two[package] != three[package]}
    assert all(two.values()) and changed == {"a", "b", "c"}


def test_with_a_base_a_further_package_changes_no_other(archives):
    family = "{name: x, base: a}"
    two = links(plan_of(archives, a=family, b=family))
    three = links(plan_of(archives, a=family, b=family, c=family))
    assert two.items() <= three.items() and three["c"]


@pytest.mark.parametrize(
    ("family", "made_from"), [("{name: x, base: a}", "ab"), ("x", "abc"), (None, "b")]
)
def test_a_package_is_made_from_what_decides_on_its_weights_too(archives, family, made_from):
    plan = plan_of(archives, a=family, b=family, c=family)
    names = [name for name, _, _ in find_materials(plan, "b")]
    configs = [f"partition_configs/{each}.yaml" for each in made_from]
    assert [name for name in names if name.startswith("partition_configs")] == configs


def test_a_package_is_made_from_its_recorded_outputs_too(archives):
    golden = archives.root / "golden" / "one"
    golden.mkdir(parents=True)
    (golden / "encode.npz").write_bytes(b"outputs")
    materials = find_materials(plan_of(archives, a=None), "a")
    (path,) = [path for name, path, _ in materials if "golden" in name]
    assert path == golden / "encode.npz"


def test_what_a_family_has_now_counts_for_each(archives):
    plan = plan_of(archives, a="x", b="x")
    [families] = [
        planning for planning in plan.find_planning("a") if isinstance(planning, FamilyPlanning)
    ]
    files = {name: {f"{name}.pte": name * 64} for name in "ab"}
    plan.foreseen = files
    digests = {families.validate_facts(name, files[name]) for name in "ab"}
    assert len(digests) == 1
    plan.foreseen = {}
    assert families.validate_facts("a", files["a"]) not in digests
    plan.workspace.write_state("b", {"link": {"action": "b" * 64, "files": files["b"]}})
    assert {families.validate_facts("a", files["a"])} == digests  # read while it is new


@pytest.mark.parametrize(
    ("families", "package", "problem"),
    [
        ({"a": "x", "b": "{name: x, share: [words]}"}, "b",
         "family: has other sharing options than 'a' of this family; give all packages of the "
         "family the same `base` and `share`"),
        ({"a": "{name: x, base: b}", "b": "{name: x, base: a}"}, "a",
         "family: has other sharing options than 'b' of this family"),
        ({"a": "{name: x, base: aa}"}, "a",
         "family.base: there is no package 'aa'; did you mean 'a'?"),
        ({"a": "{name: x, base: b}", "b": "y"}, "a",
         "family.base: the package 'b' is not in this family; give it `family: x` too"),
        ({"a": "{name: x, base: b}", "b": "[]"}, "a",
         "family.base: the package 'b', whose weights are shared, has mistakes; fix those first"),
    ],
)  # fmt: skip
def test_mistakes_of_a_family_are_a_line_each(archives, families, package, problem):
    plan = plan_of(archives, **families)
    (line,) = told(plan, package)
    assert line.startswith(problem)
    assert plan.link_digest(package) is None
