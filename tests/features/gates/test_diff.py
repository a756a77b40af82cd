"""`doit diff`: how two builds differ, and what a build can be compared with."""

import shutil
import subprocess

import pytest

from pipeline.cli.columns import columns
from pipeline.features.gates.baseline import format_baseline, parse_baseline
from pipeline.features.gates.comparison import compare_builds
from pipeline.features.gates.figures import make_build, make_figures
from pipeline.features.gates.references import _load_records
from pipeline.features.gates.rendering import describe_unchanged, heading
from pipeline.store.entries import ActionEntry
from pipeline.store.files import CONTENTS, MANIFEST
from pipeline.store.store import Store
from tests.support.builds import contents, delegation, leaf, manifest, proved, validation


def build(record=None, inside=None, **changes):
    return make_build(manifest(**changes), inside or contents(), record or validation())


def accepted(figures):
    """Return figures as a baseline records them."""
    text = format_baseline("asr", figures).encode()
    return {"figures": parse_baseline(text, "baselines/asr.yaml"), "manifest": None}


def changed():
    """A build that differs from the usual one in every respect."""
    files = {
        "asr.pte": {"digest": "c" * 64, "size": 1030},
        "w.ptd": {"digest": "d" * 64, "size": 8},
    }
    record = validation(decode=proved("decode", [36.04, "inf"], max_abs=0.05))
    record["files"] = {name: file["digest"] for name, file in files.items()}
    told = manifest(
        files=files,
        toolchain={"torch": "2.13.0", "executorch": "1.4.2"},
        emit={"external_constants": True},
        constant_methods={"get_size": 16},
    )
    methods = told["methods"]
    methods["extra"] = methods.pop("encode")
    decode = methods["decode"]
    decode["program"] = "1" * 64
    decode["lowering"] = {"partitioners": []}
    decode["delegation"] = delegation(
        0,
        {"aten.linear": 9, "aten.mul.Tensor": 1},
        left=[{"operator": "aten.linear", "place": 1, "module": "decoder", "reason": "too big"}],
    )
    inside = contents(630, 4096, **{"decoder.weight": 100, "head.weight": 800})
    inside["tensors"] = [t for t in inside["tensors"] if t["name"] != "encoder.weight"]
    next(t for t in inside["tensors"] if t["name"] == "decoder.weight")["dtype"] = "int8"
    inside["methods"]["extra"] = inside["methods"].pop("encode")
    return make_build(told, inside, record)


def test_everything_that_differs_is_told_method_by_method():
    comparison = compare_builds("asr", build(), changed(), "HEAD~1 (0123456789ab)", ["a note"])
    rows = {(title, row.what): row for title, rows in comparison.sections for row in rows}
    assert [title for title, _ in comparison.sections] == [
        "package",
        "decode",
        "encode",
        "extra",
        "tensors",
        "options",
        "toolchain",
    ]
    told = {key: tuple(row[1:]) for key, row in rows.items()}
    assert told == {
        ("package", "size"): ("1,000", "1,038", "+38 (+3.8 %)"),
        ("package", "constants"): ("600", "630", "+30 (+5.0 %)"),
        ("package", "asr.pte"): ("1,000", "1,030", "+30 (+3.0 %)"),
        ("package", "w.ptd"): ("", "8", "is new"),
        ("decode", "nodes delegated"): ("9 of 10 (90.0 %)", "0 of 10 (0.0 %)", "-90.0 points"),
        ("decode", "operators delegated"): ("1 of 2 (50.0 %)", "0 of 2 (0.0 %)", "-50.0 points"),
        ("decode", "partitions of XnnpackBackend"): ("1", "0", "-1"),
        ("decode", "left: aten.add.Tensor"): ("1", "0", "no longer left"),
        ("decode", "left: aten.linear"): ("0", "9", "newly left (in decoder: too big)"),
        ("decode", "left: aten.mul.Tensor"): ("0", "1", "newly left"),
        ("decode", "planned memory"): ("2,304", "4,352", "+2,048 (+88.9 %)"),
        ("decode", "constants"): ("300", "315", "+15 (+5.0 %)"),
        ("decode", "SQNR of logits"): ("42.1 dB", "36 dB", "-6.1 dB"),
        ("decode", "max abs error"): ("0.012", "0.05", ""),
        ("decode", "program"): ("0" * 12, "1" * 12, "another program"),
        ("decode", "lowering.partitioners"): ("xnnpack", "none", ""),
        ("encode", "method"): ("8 of 10 nodes delegated", "", "is gone"),
        ("extra", "method"): ("", "8 of 10 nodes delegated", "is new"),
        ("tensors", "head.weight"): ("", "float32 [200], 800", "is new"),
        ("tensors", "encoder.weight"): ("float32 [100], 400", "", "is gone"),
        ("tensors", "decoder.weight"): ("float32 [50], 200", "int8 [25], 100", "another dtype"),
        ("options", "constant_methods.get_size"): ("8", "16", ""),
        ("options", "emit.external_constants"): ("False", "True", ""),
        ("toolchain", "executorch"): ("1.4.1", "1.4.2", ""),
    }
    assert [row.what for row in comparison.sections[4][1]] == [
        "head.weight",
        "encoder.weight",
        "decoder.weight",
    ]


@pytest.mark.parametrize("content", [b"[]", b"{}", b'{"files": 3}', b"[" * 9999, b"\xff"])
def test_a_manifest_of_the_store_that_is_none_is_not_read(tmp_path, content):
    store = Store(tmp_path)
    entry = ActionEntry({}, {"files": {MANIFEST: store.put(content)}}, 1.0)
    assert _load_records(store, entry, MANIFEST, CONTENTS) == {}


def test_what_a_family_shares_is_told_by_its_file():
    def family(digest, size, share):
        own = {"asr.pte": {"digest": digest * 64, "size": 200}}
        foundation = {"base.ptd": {"digest": digest * 64, "size": size}}
        settings = {"name": "base", "base": "asr", "share": {"base": share}}
        return build(files=own | foundation, family=settings)

    old, new = family("a", 800, ["*"]), family("b", 600, ["layers"])
    comparison = compare_builds("asr", old, new, "x.json")
    assert [tuple(row) for _, rows in comparison.sections for row in rows] == [
        ("size", "1,000", "800", "-200 (-20.0 %)"),
        ("asr.pte", "200", "200", "other bytes"),
        ("base.ptd", "800", "600", "-200 (-25.0 %)"),
        ("share.base[0]", "*", "layers", ""),
    ]
    alone = compare_builds("asr", new, build(files=new["manifest"]["files"]), "x.json")
    rows = [("name", "base", "none", ""), ("base", "asr", "none", "")]
    rows.append(("share", "{'base': ['layers']}", "none", ""))
    assert [(title, [*map(tuple, found)]) for title, found in alone.sections] == [("family", rows)]


def test_the_text_has_a_line_for_each():
    comparison = compare_builds(
        "asr", build(), build(toolchain={"torch": "3"}), "x.json", ["a note"]
    )
    assert comparison.verdict == "asr: compared with x.json"
    assert list(columns(comparison.rows())) == [
        "toolchain",
        "  executorch  1.4.1   none",
        "  torch       2.13.0  3",
    ]


def test_the_markdown_is_a_table():
    comparison = compare_builds(
        "asr", build(), build(toolchain={"torch": "3|4"}), "x_y", ["a *note*"]
    )
    assert list(comparison.markdown()) == [
        "**`asr`**: other toolchain",
        "",
        "> a \\*note\\*",
        "",
        "<details><summary>compared with x\\_y</summary>",
        "",
        "| | before | after | change |",
        "| --- | ---: | ---: | --- |",
        "| **toolchain** | | | |",
        "| executorch | 1.4.1 | none |  |",
        "| torch | 2.13.0 | 3\\|4 |  |",
        "",
        "</details>",
    ]


def test_equal_builds_have_no_difference():
    comparison = compare_builds("asr", build(), build(), "x")
    assert comparison.same
    assert comparison.verdict == "asr: no difference from x"
    assert list(comparison.markdown()) == ["**`asr`**: no difference from x"]
    assert heading([comparison], 0) == "## No package changed"
    assert heading([comparison] * 2, 0) == "## None of 2 packages changed"
    assert compare_builds("asr", accepted(build()["figures"]), build(), "x").same


def test_numerics_of_the_same_bytes_are_no_difference():
    other = validation(decode=proved("decode", [30.0, 90.0]))
    assert compare_builds("asr", build(), build(other), "x").same


def test_of_a_validation_of_other_files_nothing_counts():
    record = validation() | {"files": {"asr.pte": "9" * 64}}
    assert make_build(manifest(), contents(), record)["figures"] == make_figures(
        manifest(), contents()
    )


def test_against_a_baseline_options_are_left_out_and_small_tensors_are_not_new():
    many = {f"layer.{n}.weight": 10_000 + n for n in range(9)}
    old = accepted(build(inside=contents(**many))["figures"])
    now = contents(**many, **{"head.weight": 8_000, "bias": 300})
    files = {"asr.pte": {"digest": "c" * 64, "size": 1000}}
    comparison = compare_builds("asr", old, build(inside=now, files=files), "the accepted baseline")
    assert {title: [row.what for row in rows] for title, rows in comparison.sections} == {
        "package": ["files"],
        "tensors": ["head.weight"],
    }


def test_a_signature_that_changed_is_told():
    told = manifest()
    told["methods"]["encode"]["signature"]["outputs"] = leaf("logits") | {"dtype": "float16"}
    new = make_build(told, contents(), validation())
    ((_, rows),) = compare_builds("asr", build(), new, "x").sections
    assert [tuple(row[:3]) for row in rows] == [
        ("output logits", "float32 [4]", "float16 [4]"),
        ("signature.outputs.dtype", "float32", "float16"),
        ("signature.outputs.name", "output", "logits"),
    ]


def test_an_output_of_another_shape_is_in_the_headline():
    """A caller that reads 10 classes reads garbage from 24, even if the sizes barely change."""
    told = manifest()
    told["methods"]["encode"]["signature"]["outputs"] = leaf("output") | {"sizes": [1, 24]}
    files = {"asr.pte": {"digest": "c" * 64, "size": 1000}}
    told["files"] = files
    comparison = compare_builds("asr", build(), make_build(told, contents(), validation()), "x")
    headline = "output output of encode float32 [4] to float32 [1, 24]"
    assert comparison.headline.startswith(headline)
    assert next(comparison.markdown()) == f"**`asr`**: {headline}"


def test_packages_that_are_the_same_are_one_line():
    same = [compare_builds(name, build(), build(), "x") for name in ("asr", "tts")]
    assert list(describe_unchanged(same)) == ["**`asr`**, **`tts`**: no difference from x"]
    assert list(describe_unchanged([])) == []


def git(folder, *words):
    who = ("-c", "user.name=n", "-c", "user.email=n@example.org")
    subprocess.run(["git", *who, *words], cwd=folder, check=True, capture_output=True)


@pytest.mark.slow
def test_builds_are_compared_with_the_baseline_a_revision_and_a_manifest(built):
    """One long scenario, since each build takes time."""
    assert built.doit("diff") == 1
    assert "pair: there is no baselines/pair.yaml; `doit baseline pair` accepts" in built.output
    (built.root / ".gitignore").write_text("build/\n.store/\n.doit*\n__pycache__/\n")
    git(built.root, "init", "-q")
    assert built.doit("baseline") == 0
    git(built.root, "add", "-A")
    git(built.root, "commit", "-qm", "one")
    shutil.copytree(built.root / "build" / "pair", built.root / "build" / "before")
    for against in ((), ("HEAD",), ("build/before/manifest.json",), ("build/before", "pair")):
        assert built.doit("diff", *against) == 0
        assert built.output.startswith("pair: no difference from "), built.output
        assert len(built.output.splitlines()) == 1

    configs = built.root / "partition_configs"
    (configs / "pair.yaml").rename(configs / "duo.yaml")
    for _ in range(2):  # unbuilt, it is known by its link inputs
        assert built.doit("diff", "HEAD") == 0
        assert built.output.startswith("duo: renamed from pair, same bytes, since HEAD (")
        assert built.doit("lower") == 0, built.output
    assert built.doit("diff", "build/before", "duo") == 0
    assert built.output.startswith("duo: no difference from build/before")
    (configs / "duo.yaml").rename(configs / "pair.yaml")

    built.edit("partition_configs/pair.yaml", "[xnnpack]", "[]")
    assert built.doit() == 0, built.output
    outputs = []
    for against in ((), ("HEAD",), ("build/before",)):
        assert built.doit("diff", *against) == 0
        first, *rest = built.output.splitlines()
        assert first.startswith("pair: compared with ")
        outputs.append(rest)
    assert outputs[0] == outputs[1] == outputs[2]  # all that the store knows of that build
    told = {line.split("  ")[1]: line for line in outputs[0] if line.startswith("  ")}
    assert told["partitions of XnnpackBackend"].endswith("-1")
    assert told["left: aten.sigmoid"].endswith(
        "newly left (portable kernels only, as the config says)"
    )
    assert told["lowering.partitioners"].split() == ["lowering.partitioners", "xnnpack", "none"]
    assert built.doit("diff", "HEAD", "--markdown", "pair") == 0
    assert built.output.startswith("## 1 package changed")
    assert "**`pair`**: size " in built.output
    assert "| partitions of XnnpackBackend | 1 | 0 | -1 |" in built.output.splitlines()

    worktrees = ["git", "worktree", "list"]
    listed = subprocess.run(worktrees, cwd=built.root, check=True, capture_output=True, text=True)
    assert len(listed.stdout.splitlines()) == 1
    shutil.rmtree(built.store)
    assert built.doit("diff", "HEAD") == 0
    assert built.output.startswith("pair: compared with the baseline of HEAD (")
    assert "this store has no export of its model pair at HEAD (" in built.output
    assert built.doit("diff", "HEAD~1") == 1
    assert "'HEAD~1' is not a package, a file or a git revision; known: pair" in built.output
    (built.root / "baselines" / "pair.yaml").unlink()
    git(built.root, "commit", "-qam", "no baseline")
    assert built.doit("diff", "HEAD") == 1
    assert "and it has no baselines/pair.yaml; check it out and run" in built.output
    built.edit("partition_configs/pair.yaml", "partitioners", "partitionerz")
    git(built.root, "commit", "-qam", "mistake")
    built.edit("partition_configs/pair.yaml", "partitionerz", "partitioners")
    assert built.doit("diff", "HEAD") == 1
    assert "pair: its config has mistakes (" in built.output
    assert "it has no baselines/pair.yaml; choose another revision" in built.output


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["build/none.json"], "'build/none.json' is not a package, a file or a git revision"),
        (["some", "thing"], "'some' and 'thing' are not packages; known: pair"),
        (["models"], "models: contains neither manifest.json nor a package's folder"),
        (["dodo.py"], "dodo.py: dodo.py is not a readable manifest"),
    ],
)
def test_what_there_is_nothing_to_compare_with_is_told(bench, words, told):
    workspace = bench("pair")
    assert workspace.doit("diff", *words) == 1
    assert told in workspace.output
    assert not list((workspace.root / "build").glob("*/*"))
