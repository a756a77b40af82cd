"""`doit diff`: removed, new or renamed packages and methods are never left out."""

import json
import re
import shutil
import subprocess

import pytest

from pipeline.features.gates.baseline import format_baseline
from pipeline.features.gates.comparison import compare_builds
from pipeline.features.gates.figures import make_build, make_figures
from tests.support.builds import manifest

MATRIX = (
    'matrix: {pc: [8, 16]}\nmodel: pair\nmethods: %s\nconstant_methods: {size: "${matrix.pc}"}\n'
)
METHODS = "{encode: {partitioners: []}, decode: {partitioners: [xnnpack]}}"


def git(root, *words):
    who = ("-c", "user.name=n", "-c", "user.email=n@example.org")
    subprocess.run(["git", *who, *words], cwd=root, check=True, capture_output=True)


def record(package, digest, **changes):
    files = {f"{package}.pte": {"digest": digest * 64, "size": 1000}}
    return manifest(package=package, files=files, **changes)


def build(workspace, package, digest, **changes):
    """Write a made-up manifest as if this package had been built."""
    folder = workspace.root / "build" / package
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "manifest.json").write_text(json.dumps(record(package, digest, **changes)))


def accept(workspace, package, digest, **changes):
    path = workspace.root / "baselines" / f"{package}.yaml"
    path.parent.mkdir(exist_ok=True)
    figures = make_figures(record(package, digest, **changes))
    path.write_text(format_baseline(package, figures))


@pytest.fixture
def team(bench):
    """Built packages of three configs, one with a matrix, with baselines, committed as `master`."""
    workspace = bench("pair")
    configs = workspace.root / "partition_configs"
    shutil.copy(configs / "pair.yaml", configs / "two.yaml")
    (configs / "mat.yaml").write_text(MATRIX % METHODS)
    for package, digest in {"pair": "a", "two": "b", "mat-8": "c", "mat-16": "d"}.items():
        build(workspace, package, digest)
        accept(workspace, package, digest)
    (workspace.root / ".gitignore").write_text("build*/\n.store/\n.doit*\n__pycache__/\n")
    git(workspace.root, "init", "-q", "-b", "master")
    git(workspace.root, "add", "-A")
    git(workspace.root, "commit", "-qm", "one")
    return workspace


def diff(workspace, *words):
    """Return the exit status, and shortened lines that begin with a package or a heading."""
    status = workspace.doit("diff", *words)
    lines = []
    for line in workspace.output.splitlines():
        if line[:1].strip() and not line.startswith((">", "|", "<", "package", "encode", "decode")):
            text = re.sub(r" \[PTE\d+\]$", "", line.replace("the baseline of ", ""))
            text, _, _ = text.partition(" (")
            lines.append(text.replace("`", "").replace("**", ""))
    return status, lines


UNCHANGED = ["mat-16: no difference from master", "mat-8: no difference from master"]
PAIR = ["pair: no difference from master"]


def remove(workspace):
    (workspace.root / "partition_configs" / "two.yaml").unlink()


def rename(workspace):
    configs = workspace.root / "partition_configs"
    (configs / "two.yaml").rename(configs / "duo.yaml")
    build(workspace, "duo", "b")


def rename_and_edit(workspace):
    rename(workspace)
    build(workspace, "duo", "e")


def remove_matrix_value(workspace):
    workspace.edit("partition_configs/mat.yaml", "8, 16", "8, 32")
    build(workspace, "mat-32", "f")


@pytest.mark.parametrize(
    ("edit", "lines", "heading"),
    [
        (
            remove,
            ["two: removed since master", *UNCHANGED, *PAIR],
            "## None of 3 packages changed, 1 removed",
        ),
        (
            rename,
            ["duo: renamed from two, same bytes, since master", *UNCHANGED, *PAIR],
            "## None of 3 packages changed, 1 renamed",
        ),
        (
            rename_and_edit,
            ["two: removed since master", "duo: new since master", *UNCHANGED, *PAIR],
            "## None of 3 packages changed, 1 removed, 1 new",
        ),
        (
            remove_matrix_value,
            [
                "mat-16: removed since master",
                "mat-32: new since master",
                UNCHANGED[1],
                *PAIR,
                "two: no difference from master",
            ],
            "## None of 3 packages changed, 1 removed, 1 new",
        ),
    ],
)
def test_packages_that_are_on_one_side_only_are_shown(team, edit, lines, heading):
    edit(team)
    assert diff(team, "master") == (0, lines)
    assert "no build of it" not in team.output
    status, markdown = diff(team, "master", "--markdown")
    assert (status, markdown) == (0, [heading, *lines])


def test_where_no_package_is_left_or_none_was_there(team):
    git(team.root, "rm", "-qr", "partition_configs")
    removed = [f"{name}: removed since master" for name in ("mat-16", "mat-8", "pair", "two")]
    assert diff(team, "master") == (0, removed)
    assert diff(team, "master", "--markdown") == (0, ["## 4 packages removed", *removed])
    git(team.root, "commit", "-qam", "none")
    assert diff(team, "HEAD") == (
        1,
        ["diff: no packages: there is no folder partition_configs/; doit init creates an example"],
    )
    git(team.root, "checkout", "-q", "HEAD~1", "--", "partition_configs")
    new = [f"{name}: new since HEAD" for name in ("mat-16", "mat-8", "pair", "two")]
    assert diff(team, "HEAD") == (0, new)
    assert diff(team, "HEAD", "--markdown") == (0, ["## 4 packages new", *new])


def test_a_matrix_with_a_mistake_is_named_beside_what_it_made(team):
    team.edit("partition_configs/mat.yaml", "[8, 16]", "8")
    status, lines = diff(team, "master", "mat*")
    removed = ["mat-16: removed since master", "mat-8: removed since master"]
    assert (status, lines) == (0, [*removed, "mat: new since master"])
    assert "  its config has mistakes (partition_configs/mat.yaml:1: matrix.pc: " in team.output


def test_a_revision_without_the_workspace_has_no_package(team):
    shop = team.root / "shop"
    shop.mkdir()
    for name in ("dodo.py", "models", "partition_configs"):
        (team.root / name).rename(shop / name)
    team.root = shop
    status, lines = diff(team, "master")
    assert (status, len(lines)) == (0, 4)
    assert lines[0] == "mat-16: new since master"


def test_a_package_that_is_asked_for_and_gone(team):
    remove(team)
    assert diff(team, "master", "two") == (
        1,
        ["two: removed since master", "diff: 'two' was removed since master"],
    )
    assert diff(team, "two", "master", "pair") == (
        1,
        ["two: removed since master", *PAIR, "diff: 'two' was removed since master"],
    )
    assert diff(team, "master", "t*") == (0, ["two: removed since master"])
    assert diff(team, "master", "tow")[1] == [
        "diff: 'master' and 'tow' are not packages; known: mat-16, mat-8, pair"
    ]
    assert diff(team) == (
        0,
        [
            line.replace("master", "the accepted baseline")
            for line in ["two: removed since master", *UNCHANGED, *PAIR]
        ],
    )
    git(team.root, "checkout", "-q", "partition_configs")
    rename(team)
    assert diff(team, "master", "two")[1] == [
        "duo: renamed from two, same bytes, since master",
        "diff: 'two' was renamed to 'duo' since master",
    ]


def test_builds_in_folders_are_compared_by_name_and_bytes(team):
    shutil.copytree(team.root / "build", team.root / "build-before")
    remove(team)
    rename_lines = diff(team, "build-before")[1]
    assert rename_lines[0] == "two: removed since build-before"
    shutil.rmtree(team.root / "build-before" / "pair")
    assert diff(team, "build-before")[1][-1] == "pair: new since build-before"
    assert diff(team, "build-before/two") == (
        1,
        ["two: removed since build-before/two", "diff: 'two' was removed since build-before/two"],
    )
    build(team, "pair", "b")
    assert diff(team, "build-before/two/manifest.json", "pair") == (
        0,
        ["pair: no difference from build-before/two/manifest.json"],
    )
    build(team, "pair", "c")
    assert diff(team, "build-before", "pair", "--markdown")[1][0] == "## 1 package new"


def test_fail_on_names_what_happened(team):
    remove(team)
    methods = manifest()["methods"]
    del methods["encode"]
    build(team, "pair", "9", methods=methods)
    assert diff(team, "master")[0] == 0
    assert diff(team, "master", "--fail-on", "new,renamed")[0] == 0
    status, lines = diff(team, "master", "--fail-on", "removed,changed")
    assert (status, lines[-2:]) == (
        1,
        ["diff: --fail-on changed: pair", "--fail-on removed: two, pair/encode"],
    )
    assert diff(team, "master", "--fail-on=removed", "mat*", "--markdown")[0] == 0
    assert diff(team, "master", "--markdown", "pair")[1][1] == "pair: method encode removed"
    assert diff(team, "master", "--fail-on=gone") == (
        1,
        ["diff: --fail-on: 'gone'; known: changed, removed, renamed, new"],
    )


def methods_of(*names):
    """Return a build whose methods were compiled separately, each from a different program."""
    told = manifest()
    template = told["methods"]["encode"]
    methods = {}
    objects = {}
    for name, program in names:
        methods[name] = template | {"unit": name, "program": program * 64}
        blob = {"digest": name[0].encode().hex() * 32, "size": 8}
        parts = {"constants": [], "external_constants": [], "delegates": [], "named": []}
        objects[name] = {"parts": parts | {"named_external": {}, "program": blob}}
    return make_build(told | {"methods": methods, "objects": objects}, None, None)


def test_methods_that_are_removed_new_or_renamed():
    old = methods_of(("encode", "1"), ("decode", "2"), ("last", "3"))
    new = methods_of(("embed", "1"), ("decode", "2"), ("more", "4"))
    comparison = compare_builds("asr", old, new, "x")
    assert comparison.methods == {"embed": "renamed", "last": "removed", "more": "new"}
    rows = {title: tuple(rows[0]) for title, rows in comparison.sections}
    assert rows == {
        "embed": ("method", "encode", "embed", "renamed, same program"),
        "last": ("method", "8 of 10 nodes delegated", "", "is gone"),
        "more": ("method", "", "8 of 10 nodes delegated", "is new"),
    }
    assert comparison.headline == (
        "method encode renamed to embed, method last removed, method more new"
    )
    assert comparison.names_of("removed") == ["asr/last"]
    assert comparison.names_of("changed") == ["asr"]
