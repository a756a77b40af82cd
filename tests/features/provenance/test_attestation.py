"""Statements and bills of materials against the schemas of their formats, and folders that don't
match their attestation."""

import base64
import copy
import json
import os
import shutil
from functools import reduce
from operator import getitem

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from google.protobuf.json_format import ParseDict
from hypothesis import given, settings
from hypothesis import strategies as st
from in_toto_attestation.predicates.provenance.v1.provenance_pb2 import Provenance
from in_toto_attestation.v1.statement import Statement
from in_toto_attestation.v1.statement_pb2 import Statement as StatementMessage

from pipeline.features.provenance.attestation import PROVENANCE, make_provenance, make_statement
from pipeline.features.provenance.bom import BOM, CLOCK, make_bom
from pipeline.features.provenance.envelopes import sign_statement
from pipeline.features.provenance.verification import verify_folder
from pipeline.features.signing.keys import Keys
from pipeline.store.digest import hash_bytes
from pipeline.store.revision import Revision
from tests.support import builds

FILES = {"asr.pte": b"program", "asr.ptd": b"weights"}
REPORTS = {"report.json": b"{}", "manifest.json": b"{}"}
FAMILY = {"name": "asr", "base": "asr-base", "share": {"asr": ["*"]}}
MANIFEST = builds.manifest(
    family=FAMILY,
    action="c" * 64,
    toolchain={
        "python": "3.11.2",
        "torch": "2.13.0+cpu",
        "executorch": f"1.4.1, changed: {'e' * 64}",
        "$TORCH_X": "d" * 64,
    },
    operators=[{"name": "own", "digest": "f" * 64, "operators": ["own::f"], "methods": ["encode"]}],
)
BUNDLE = "asr.pte.intoto.jsonl"


def make_keys():
    private = Ed25519PrivateKey.generate()
    public = private.public_key()
    return Keys(private, {hash_bytes(public.public_bytes_raw()): public})


KEYS, OTHERS = make_keys(), make_keys()


def digests(data):
    import hashlib

    return {"sha256": hashlib.sha256(data).hexdigest(), "blake3": hash_bytes(data)}


def provenance(**more):
    statement = make_provenance(
        MANIFEST,
        [("models/asr.py", digests(b"source"))],
        Revision("a" * 40, True),
        {name: digests(data) for name, data in REPORTS.items()},
        {"pte-pipeline": "0.1.0"},
    )
    return make_statement({n: digests(d) for n, d in FILES.items()}, PROVENANCE, statement) | more


def bill():
    figures = {"encode": {"lowest SQNR in dB, at most 120": "54.3"}}
    return make_bom(MANIFEST, {n: digests(d) for n, d in FILES.items()}, figures, "0.1.0")


@pytest.fixture
def folder(tmp_path):
    """A folder with just a package and its attestation."""
    for name, data in {**FILES, **REPORTS}.items():
        (tmp_path / name).write_bytes(data)
    (tmp_path / BUNDLE).write_bytes(sign_statement(provenance(), KEYS))
    return tmp_path


def test_the_statement_is_one_of_in_totos_with_slsas_provenance():
    made = provenance()
    message = ParseDict(made, StatementMessage())  # refuses fields that the schema lacks
    Statement.copy_from_pb(message).validate()
    found = ParseDict(made["predicate"], Provenance())
    assert [each.name for each in message.subject] == sorted(FILES)
    materials = {each.name: each for each in found.build_definition.resolved_dependencies}
    assert materials["workspace"].digest["gitCommit"] == "a" * 40
    assert materials["workspace"].annotations["changed"] is True
    assert materials["models/asr.py"].digest["sha256"] == digests(b"source")["sha256"]
    assert materials["torch"].uri == "pkg:pypi/torch@2.13.0%2Bcpu"
    assert materials["executorch"].digest["blake3"] == "e" * 64
    assert materials["$TORCH_X"].digest["blake3"] == "d" * 64
    parameters = found.build_definition.external_parameters
    assert parameters["methods"]["encode"]["partitioners"][0]["name"] == "xnnpack"
    assert parameters["family"] == FAMILY
    assert {each.name for each in found.run_details.byproducts} == {*REPORTS}
    assert found.run_details.builder.id and found.build_definition.build_type.startswith("https:")


def test_the_bill_of_materials_is_one_of_cyclonedxs(monkeypatch):
    monkeypatch.delenv(CLOCK, raising=False)
    made = bill()
    validator = JsonStrictValidator(SchemaVersion.V1_6)
    assert validator.validate_str(json.dumps(made)) is None
    assert made == bill() and "timestamp" not in made["metadata"]
    model = made["metadata"]["component"]
    assert model["type"] == "machine-learning-model"
    assert model["modelCard"]["quantitativeAnalysis"]["performanceMetrics"][0]["slice"] == "encode"
    hashes = {each["name"]: each.get("hashes") for each in made["components"]}
    assert {"alg": "SHA-256", "content": digests(b"program")["sha256"]} in hashes["asr.pte"]
    assert {"own", "executorch", *FILES} == {*hashes}
    assert {"torch", "pte-pipeline"} < {e["name"] for e in made["metadata"]["tools"]["components"]}
    monkeypatch.setenv(CLOCK, "1700000000")
    timed = bill()
    assert timed["metadata"].pop("timestamp") == "2023-11-14T22:13:20Z" and timed == made
    assert validator.validate_str(json.dumps(bill())) is None


def test_what_is_signed_twice_is_the_same():
    assert sign_statement(provenance(), KEYS) == sign_statement(provenance(), KEYS)


def test_a_folder_as_it_was_attested(folder):
    with open(folder / BUNDLE, "ab") as file:  # others may append theirs
        file.write(sign_statement(make_statement({}, BOM, bill()), OTHERS))
        file.write(b"\n{}\n")
    findings, problems = verify_folder(folder, KEYS)
    assert not problems
    assert findings[0].startswith(f"{BUNDLE}: 4 files as attested, signed by ")
    (folder / "report.json").unlink()
    findings, problems = verify_folder(folder, KEYS)
    assert not problems and findings[0].endswith("; without report.json")


def edit(folder, change):
    """Change the envelope of a bundle without signing it again."""
    envelope = json.loads((folder / BUNDLE).read_bytes())
    change(envelope)
    (folder / BUNDLE).write_text(json.dumps(envelope))


def resign(folder, change, keys=KEYS):
    statement = copy.deepcopy(provenance())
    change(statement)
    (folder / BUNDLE).write_bytes(sign_statement(statement, keys))


def rename(name):
    return lambda f: resign(f, lambda s: s["subject"][0].update(name=name))


def flip(folder, name):
    data = bytearray((folder / name).read_bytes())
    data[len(data) // 2] ^= 1
    (folder / name).write_bytes(data)


WRONG = {
    "a flipped bit": (lambda f: flip(f, "asr.ptd"), "asr.ptd: differs from its attest"),
    "of a report": (lambda f: flip(f, "report.json"), "report.json: differs from its"),
    "a missing file": (lambda f: (f / "asr.ptd").unlink(), "asr.ptd: is missing, and asr.pte.into"),
    "another file": (lambda f: (f / "x.so").touch(), "x.so: is not in any attestation"),
    "one in a folder": (
        lambda f: ((f / "a").mkdir(), (f / "a/.hidden").touch()),
        "a/.hidden: is not in any attestation",
    ),
    "a link": (
        lambda f: ((f / "asr.ptd").rename(f.parent / "w"), (f / "asr.ptd").symlink_to("../w")),
        "asr.ptd: is not a file",
    ),
    "a pipe": (
        lambda f: ((f / "asr.ptd").unlink(), os.mkfifo(f / "asr.ptd")),
        "asr.ptd: is not a file",
    ),
    "a folder": (
        lambda f: ((f / "asr.ptd").unlink(), (f / "asr.ptd").mkdir()),
        "asr.ptd: is missing, and",
    ),
    "no attestation": (lambda f: (f / BUNDLE).unlink(), "no attestation: no file in it is called "),
    "a bundle that blocks": (
        lambda f: ((f / BUNDLE).unlink(), os.mkfifo(f / BUNDLE)),
        f"{BUNDLE}: is not a file",
    ),
    "an empty one": (lambda f: (f / BUNDLE).write_bytes(b""), f"{BUNDLE}: contains no provenance"),
    "no signature": (lambda f: edit(f, lambda e: e["signatures"].clear()), "line 1: is not signed"),
    "another key": (
        lambda f: resign(f, lambda s: None, OTHERS),
        "which is not a trusted key",
    ),
    "the name of ours": (
        lambda f: (
            name := json.loads((f / BUNDLE).read_bytes())["signatures"][0]["keyid"],
            resign(f, lambda s: None, OTHERS),
            edit(f, lambda e: e["signatures"][0].update(keyid=name)),
        ),
        "line 1: does not match its signature",
    ),
    "another statement": (
        lambda f: edit(f, lambda e: e.update(payload=base64.b64encode(b"{}").decode())),
        "line 1: does not match its signature",
    ),
    "another type": (
        lambda f: edit(f, lambda e: e.update(payloadType="text/plain")),
        "line 1: is not an in-toto statement",
    ),
    "no envelope": (lambda f: (f / BUNDLE).write_text('{"payload": 1}'), "is not a DSSE envelope"),
    "no JSON": (lambda f: (f / BUNDLE).write_text("["), "line 1: is not JSON"),
    "JSON without end": (lambda f: (f / BUNDLE).write_text("[" * 100_000), "line 1: is not JSON"),
    "many lines": (lambda f: (f / BUNDLE).write_text("{}\n" * 101), "101 lines, must have at most"),
    "too large": (
        lambda f: os.truncate(f / BUNDLE, 1 << 25),
        f"{BUNDLE}: cannot be read: It has more than 16,777,216 bytes",
    ),
    "no files": (lambda f: resign(f, lambda s: s["subject"].clear()), "names no files by SHA-256"),
    "no SHA-256": (
        lambda f: resign(f, lambda s: s["subject"][0]["digest"].pop("sha256")),
        "names no files by SHA-256",
    ),
    "a way out": (rename("../x"), "names '../x', which is not a file name"),
    "a root": (rename("/etc/passwd"), "names '/etc/passwd', which is not a file name"),
    "a NUL": (rename("a\0b"), "names no files by SHA-256"),
    "another predicate": (
        lambda f: resign(f, lambda s: s.update(predicateType="x")),
        f"{BUNDLE}: contains no provenance",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_told_in_one_line(folder, name):
    change, line = WRONG[name]
    change(folder)
    (problem,) = verify_folder(folder, KEYS)[1]
    assert line in problem and "\n" not in problem


def test_two_packages_stand_in_one_folder(folder):
    (folder / "b.pte").write_bytes(b"other")
    other = make_statement(
        {name: digests((folder / name).read_bytes()) for name in ("asr.ptd", "b.pte")},
        PROVENANCE,
        provenance()["predicate"],
    )
    (folder / "b.pte.intoto.jsonl").write_bytes(sign_statement(other, KEYS))
    findings, problems = verify_folder(folder, KEYS)
    assert not problems and len(findings) == 2


def test_packages_stand_in_folders_of_a_folder(folder):
    (folder / "release").mkdir()
    for path in [*folder.iterdir()]:
        if path.is_file():
            path.rename(folder / "release" / path.name)
    findings, problems = verify_folder(folder, KEYS)
    assert not problems
    assert findings[0].startswith(f"release/{BUNDLE}: 4 files as attested, ")
    flip(folder, "release/asr.ptd")
    (folder / "asr.pte").touch()  # outside the folder of its attestation
    assert verify_folder(folder, KEYS)[1] == [
        "release/asr.ptd: differs from its attestation",
        "asr.pte: is not in any attestation",
    ]


def test_files_of_another_commit_are_told(folder):
    def told(commit):
        return verify_folder(folder, KEYS, commit)[1]

    assert told("a" * 40) == [f"{BUNDLE}: was built from commit aaaaaaaaaaaa with changes"]
    assert told("b" * 40) == [
        f"{BUNDLE}: was built from commit 'aaaaaaaaaaaa', not from bbbbbbbbbbbb"
    ]
    sources = ("predicate", "buildDefinition", "resolvedDependencies", 0)
    resign(folder, lambda s: reduce(getitem, sources, s).pop("annotations"))
    assert not told("a" * 40)
    resign(folder, lambda s: reduce(getitem, sources[:-1], s).pop(0))
    assert told("a" * 40) == [f"{BUNDLE}: names no commit, must name aaaaaaaaaaaa"]


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    return tmp_path_factory.mktemp("mutated")


LINE = sign_statement(provenance(), KEYS)


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_no_mutation_of_an_attestation_is_believed_or_breaks_it(shared, data):
    shutil.rmtree(shared / "f", ignore_errors=True)
    folder = shared / "f"
    folder.mkdir()
    for name, content in {**FILES, **REPORTS}.items():
        (folder / name).write_bytes(content)
    line = bytearray(LINE)
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(line) - 1))
        kind = data.draw(st.sampled_from(["set", "cut", "insert"]))
        if kind == "cut":
            del line[place : place + data.draw(st.integers(1, 50))]
        else:
            line[place : place + (kind == "set")] = data.draw(st.binary(min_size=1, max_size=8))
        line = line or bytearray(b" ")
    (folder / BUNDLE).write_bytes(line)
    _, problems = verify_folder(folder, KEYS)
    if not problems:  # only unsigned parts differ, such as space or an extra field
        payload, ours = json.loads(line)["payload"], json.loads(LINE)["payload"]
        assert base64.b64decode(payload) == base64.b64decode(ours)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=6,
)


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_no_signed_statement_breaks_it(shared, data):
    """With several keys, a verifier may not know the signer."""
    statement = copy.deepcopy(provenance())
    node, key = {"s": statement}, "s"
    while isinstance(node[key], dict | list) and node[key] and data.draw(st.booleans()):
        node = node[key]
        keys = [*node] if isinstance(node, dict) else range(len(node))
        key = data.draw(st.sampled_from([*keys]))
    if node is not None and "s" not in node:
        node[key] = data.draw(JSON.filter(lambda v: v == v and "inf" not in repr(v)))
    folder = shared / "g"
    folder.mkdir(exist_ok=True)
    try:
        line = sign_statement(statement, KEYS)
    except ValueError:  # not a number
        return
    (folder / BUNDLE).write_bytes(line)
    assert all("\n" not in problem for problem in verify_folder(folder, KEYS)[1])
