"""Whether a package on disk matches its manifest, and the manifest matches the source."""

import json
import os
from copy import deepcopy

import pytest

from pipeline.run.prove.measured import check_files
from pipeline.run.prove.validate import check_integrity
from pipeline.store import digest, file_digests
from pipeline.store.errors import PipelineError
from pipeline.store.file_digests import FileDigests
from tests.support.patches import patched

CONTENT = b"a package"
MANIFEST = {
    "package": "asr",
    "methods": {"encode": {"program": "1" * 64}, "decode": {"program": "2" * 64}},
    "constant_methods": {"get_size": 8},
    "files": {"asr.pte": {"digest": digest.hash_bytes(CONTENT), "size": len(CONTENT)}},
}
PROGRAMS = {"encode": "1" * 64, "decode": "2" * 64}


def told(folder, content=CONTENT, programs=PROGRAMS, constants=None, **changes):
    if content is not None:
        (folder / "asr.pte").write_bytes(content)
    manifest = deepcopy(MANIFEST) | changes
    return list(
        check_integrity(
            folder, manifest, "asr", programs, constants or {"get_size": 8}, FileDigests()
        )
    )


def test_what_is_as_it_should_be_is_told_nothing_of(tmp_path):
    assert told(tmp_path) == []


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"a Package", "asr.pte does not match the manifest's digest"),
        (b"a packag", "asr.pte has 8 bytes, 9 in the manifest"),
        (None, "asr.pte: No such file or directory, but the manifest names it"),
    ],
)
def test_files_are_those_of_the_manifest(tmp_path, content, sentence):
    assert told(tmp_path, content) == [sentence]


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"package": "other"}, "the manifest belongs to package 'other'"),
        ({"files": {}}, "the manifest names no .pte file"),
        (
            {"programs": {"encode": "1" * 64}},
            "decode: the manifest has this method, but the source does not",
        ),
        (
            {"programs": {**PROGRAMS, "more": "3" * 64}},
            "more: the manifest lacks this method of the source",
        ),
        (
            {"programs": {**PROGRAMS, "encode": "3" * 64}},
            "encode: the manifest names a program other than the source's",
        ),
        ({"constants": {"get_size": 9}}, "get_size: the manifest says 8, the config 9"),
        ({"constants": {"get_size": 8.0}}, "get_size: the manifest says 8, the config 8.0"),
        ({"constant_methods": {}}, "get_size: the manifest says None, the config 8"),
    ],
)
def test_the_manifest_is_what_source_and_config_ask_for(tmp_path, changes, sentence):
    assert told(tmp_path, **changes) == [sentence]


def test_a_manifest_that_is_not_there(tmp_path):
    (sentence,) = check_integrity(tmp_path, None, "asr", {}, {}, FileDigests())
    assert sentence == "manifest.json is missing, or can't be read"


def test_a_file_is_hashed_once_while_it_does_not_change(tmp_path, monkeypatch):
    monkeypatch.setattr(file_digests, "RACY_NS", -1)
    hashed = []
    monkeypatch.setattr(
        file_digests, "hash_file", lambda path: hashed.append(path) or digest.hash_file(path)
    )
    path, digests = tmp_path / "asr.pte", FileDigests()
    path.write_bytes(CONTENT)
    files = {"asr.pte": digest.hash_bytes(CONTENT)}
    check_files(tmp_path, files, digests)
    assert not list(check_integrity(tmp_path, MANIFEST, "asr", PROGRAMS, {"get_size": 8}, digests))
    check_files(tmp_path, files, digests)
    assert hashed == [path]
    stat = path.stat()
    path.write_bytes(CONTENT.upper())
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    with pytest.raises(PipelineError, match="changed while the build ran"):
        check_files(tmp_path, files, digests)


SWAP = """
import json
_validate = validate

def validate(action, workspace, *arguments, **options):
    path = workspace.package(action.package) / "manifest.json"
    manifest = json.loads(path.read_text())
    methods = manifest["methods"]
    methods["encode"]["program"] = methods["decode"]["program"]
    path.write_text(json.dumps(manifest))
    _validate(action, workspace, *arguments, **options)
"""


@pytest.mark.slow
def test_a_manifest_of_another_package_fails_the_validation(built, tmp_path):
    """It replaces the right one after the plan has looked at it."""
    built.edit("partition_configs/pair.yaml", "model:", "validate: {inputs: 1}\nmodel:")
    assert built.doit("validate", **patched(tmp_path, "pipeline.run.prove.validate", SWAP)) == 1
    sentence = "encode: the manifest names a program other than the source's"
    assert sentence in built.output
    record = json.loads(built.bytes_of("pair", "report.json"))
    assert record["failures"] == [sentence]
