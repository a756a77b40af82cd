"""`doit attest` and `doit verify`, as a user runs them."""

import json
import shutil

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from pipeline.features.provenance import verify
from pipeline.features.provenance.envelopes import open_bundle
from pipeline.features.signing.keys import load_keys
from pipeline.store.errors import PipelineError
from tests.features.refit.test_refit import PORTABLE, start, write
from tests.support.keys import write_keys

NAMES = ("small.pte.intoto.jsonl", "small.cdx.json")


@pytest.fixture(scope="module")
def attested(tmp_path_factory):
    """A workspace with an attested package, and the paths of the keys."""
    folder = tmp_path_factory.mktemp("attest")
    private, public = write_keys(folder)
    bench = start(folder / "w", {"run": PORTABLE, "again": PORTABLE})
    write(bench, 1)
    assert bench.doit("attest") == 1
    assert "attest: no key to sign with; make one (`openssl genpkey" in bench.output
    settings = f'[tool.pte-pipeline]\nsigning_key = "{private}"\n'
    (bench.root / "pyproject.toml").write_text(settings)
    assert bench.doit("attest") == 1
    assert "attest: small: its build is out of date (" in bench.output
    assert "; run `doit small` first" in bench.output
    assert bench.doit() == 0, bench.output
    assert bench.doit("attest", "smal") == 1
    assert "no package 'smal'; did you mean 'small'?" in bench.output
    assert bench.doit("attest", "small") == 0, bench.output
    return bench, public


def build(bench):
    return bench.root / "build" / "small"


@pytest.mark.slow
def test_an_attestation_names_what_a_package_was_made_from(attested):
    bench, public = attested
    line = "build/small/small.pte.intoto.jsonl: 1 file, made from 2 files\n"
    assert line in bench.output
    keys = load_keys(None, [public])
    ((statement, _), (bill, _)), reasons = open_bundle((build(bench) / NAMES[0]).read_bytes(), keys)
    assert not reasons
    made = statement["predicate"]["buildDefinition"]
    names = [each["name"] for each in made["resolvedDependencies"]]
    assert names[:2] == ["models/small.pt2", "partition_configs/small.yaml"]
    assert {"torch", "executorch", "python"} < {*names}
    assert [each["name"] for each in statement["subject"]] == ["small.pte"]
    byproducts = {each["name"] for each in statement["predicate"]["runDetails"]["byproducts"]}
    assert {"manifest.json", "report.json", "report.html", NAMES[1]} < byproducts
    text = (build(bench) / NAMES[1]).read_text()
    assert bill["predicate"] == json.loads(text) and bill["subject"] == statement["subject"]
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    for file in NAMES:
        assert str(bench.root).encode() not in (build(bench) / file).read_bytes()


@pytest.mark.slow
def test_the_same_build_is_attested_by_the_same_bytes(attested):
    bench, _ = attested
    before = [(build(bench) / name).read_bytes() for name in NAMES]
    assert bench.doit("attest") == 0
    assert [(build(bench) / name).read_bytes() for name in NAMES] == before


@pytest.mark.slow
def test_the_figures_of_a_sensitivity_are_attested(attested):
    bench, public = attested
    figures = build(bench) / "sensitivity.json"
    figures.write_text("{}\n")
    assert bench.doit("attest") == 0, bench.output
    assert verify.run([str(build(bench)), str(public)], bench.root) == 0
    figures.unlink()
    assert bench.doit("attest") == 0, bench.output


@pytest.mark.slow
def test_a_folder_is_verified_anywhere(attested, tmp_path, capsys):
    bench, public = attested
    shutil.copytree(build(bench), release := tmp_path / "release")
    for name in ("report.html", "manifest.json"):
        (release / name).unlink()
    assert verify.run([str(release), str(public)], tmp_path) == 0
    assert "files as attested, signed by " in capsys.readouterr().out
    flipped = bytearray((release / "small.pte").read_bytes())
    flipped[100] ^= 1
    (release / "small.pte").write_bytes(flipped)
    (release / "more.so").touch()
    assert verify.run([str(release), str(public)], tmp_path) == 1
    said = capsys.readouterr().err.splitlines()
    assert said == [
        "verify: small.pte: differs from its attestation",
        "verify: more.so: is not in any attestation",
        f"verify: {release}: 2 problems",
    ]


USAGE = "usage: doit verify [--commit <id>] folder"


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ([], USAGE),
        (["--key", "x"], USAGE),
        (["nowhere"], "verify: nowhere: is not a folder; " + USAGE),
        (["."], "verify: no public key to verify with; name a key file after the folder"),
        ([".", "key.pem"], "key.pem: is not an Ed25519 public key in PEM"),
        ([".", "--commit"], "verify: --commit : must be a full git commit id"),
        (["--commit", "HEAD", "."], "verify: --commit HEAD: must be a full git commit id"),
        ([".", "none.pub"], "none.pub: cannot be read (No such file or directory)"),
    ],
)
def test_command_lines_that_make_no_sense(tmp_path, monkeypatch, words, line):
    monkeypatch.chdir(tmp_path)
    write_keys(tmp_path)
    with pytest.raises(PipelineError) as error:
        verify.run(words, tmp_path)
    assert line in str(error.value)


@pytest.mark.slow
def test_an_attestation_goes_with_the_files_that_it_is_of(attested):
    bench, _ = attested
    write(bench, 2)
    assert bench.doit("lower") == 0
    assert not any((build(bench) / name).exists() for name in NAMES)
    assert bench.doit() == 0 and bench.doit("attest") == 0, bench.output
    assert bench.doit("clean", "lower:small") == 0
    assert not build(bench).exists()
