"""Model sources are distinguished, and their programs named, without torch."""

import json
import shutil
import subprocess
import sys
import zipfile

import pytest
import torch
from torch.export import Dim, export
from torch.export.pt2_archive._package import package_pt2

from pipeline.program import archive_reader
from pipeline.program.archive_facts import describe_archive
from pipeline.program.sources import find_sources, method_sources, parse_archive
from pipeline.store.digest import hash_file
from pipeline.store.errors import SourceError
from tests.support.resident import run_python


class Scale(torch.nn.Module):
    def __init__(self, factor=2.0):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        torch.nn.init.constant_(self.linear.weight, factor)
        torch.nn.init.zeros_(self.linear.bias)

    def forward(self, x):
        return torch.relu(self.linear(x))


class Other(Scale):
    def forward(self, x):
        return torch.sigmoid(self.linear(x))


def program(model=None, size=2, dynamic=None):
    model = (model or Scale()).requires_grad_(False)
    return export(model, (torch.ones(size, 4),), dynamic_shapes=dynamic)


def archive(path, **programs):
    package_pt2(str(path), exported_programs=programs)
    return path


@pytest.fixture
def models(tmp_path):
    folder = tmp_path / "models"
    folder.mkdir()
    return folder


def methods_of(models, name):
    found, _ = find_sources(models)
    return method_sources(found[name], describe_archive)


def test_yaml_is_a_source_unless_it_stands_beside_one(models):
    for name in ("smol.yaml", "whisper.py", "whisper.yaml"):
        (models / name).write_text("")
    found, wrong = find_sources(models)
    assert {name: (s.form, s.path.suffix) for name, s in found.items()} == {
        "smol": ("exporter", ".yaml"),
        "whisper": ("exporter", ".py"),
    }
    assert wrong == {}


def test_three_forms_are_told_apart(models):
    archive(models / "one.pt2", encode=program(), decode=program(Other()))
    (models / "two").mkdir()
    archive(models / "two" / "b.pt2", anything=program())
    torch.export.save(program(), models / "two" / "a.pt2")
    (models / "three.py").write_text("raise SystemError('must not be imported to be found')")
    (models / "notes.txt").write_text("")
    (models / "_shared.py").write_text("")
    found, ambiguous = find_sources(models)
    assert {name: s.form for name, s in found.items()} == {
        "one": "archive",
        "two": "folder",
        "three": "exporter",
    }
    assert ambiguous == {}
    assert list(methods_of(models, "one")) == ["encode", "decode"]
    assert list(methods_of(models, "two")) == ["a", "b"]


def test_plain_save_is_the_one_method_forward(models):
    torch.export.save(program(), models / "plain.pt2")
    assert list(methods_of(models, "plain")) == ["forward"]


def test_two_sources_of_one_name_are_ambiguous(models):
    archive(models / "m.pt2", forward=program())
    (models / "m.py").write_text("")
    found, ambiguous = find_sources(models)
    assert "m" not in found
    assert "models/m.pt2" in ambiguous["m"] and "models/m.py" in ambiguous["m"]


def test_what_an_archive_holds_survives_json(models):
    path = archive(models / "m.pt2", z=program(), a=program(Other()))
    facts = describe_archive(path)
    again = parse_archive(facts.content, json.loads(json.dumps(facts.to_json())))
    assert [each.entry for each in again.programs] == ["z", "a"]
    assert [each._replace(parts={}) for each in facts.programs] == list(again.programs)


def exchange_file(path, folder):
    path.parent.mkdir(exist_ok=True)
    copy = path.with_suffix(".new")
    copy.write_bytes((folder / "m.pt2").read_bytes())
    copy.replace(path)


def exchange_link(path, folder):
    path.parent.mkdir(exist_ok=True)
    path.unlink(missing_ok=True)
    path.symlink_to(folder / "m.pt2")


def exchange_folder(path, folder):
    path.parent.unlink(missing_ok=True)
    path.parent.symlink_to(folder)


@pytest.mark.parametrize("known", [False, True])
def test_archive_that_changes_while_it_is_read_is_refused(models, monkeypatch, known):
    path = archive(models / "m.pt2", a=program())
    content = hash_file(path) if known else None
    original = zipfile.ZipFile.read

    def edit(members, name):
        path.touch()
        with open(path, "ab") as file:
            file.write(b"more")
        return original(members, name)

    monkeypatch.setattr(zipfile.ZipFile, "read", edit)
    with pytest.raises(SourceError, match=r"changed while it was read"):
        describe_archive(path, content)


def test_archive_of_the_store_that_others_use_is_described(models, monkeypatch):
    """Each use of a blob sets its modification time."""
    path = archive(models / "m.pt2", a=program())
    content = hash_file(path)
    expected = describe_archive(path, content)
    original = zipfile.ZipFile.read

    def touch(members, name):
        path.touch()
        return original(members, name)

    monkeypatch.setattr(zipfile.ZipFile, "read", touch)
    assert describe_archive(path, content, is_own=True) == expected


def test_archive_that_changed_since_it_was_hashed_is_refused(models):
    path = archive(models / "m.pt2", a=program())
    content = hash_file(path)
    archive(path, a=program(Other()))
    with pytest.raises(SourceError, match=r"changed while it was read"):
        describe_archive(path, content)


@pytest.mark.parametrize("back", [False, True], ids=["once", "and back"])
@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("exchange", [exchange_file, exchange_link, exchange_folder])
def test_facts_are_those_of_the_content(tmp_path, monkeypatch, exchange, known, back):
    """Whatever is at the path meanwhile: the store keeps the facts under that digest."""
    path = tmp_path / "models" / "m.pt2"
    for folder, module in (("one", Scale()), ("two", Other())):
        (tmp_path / folder).mkdir()
        archive(tmp_path / folder / "m.pt2", a=program(module))
    expected = {}
    for folder in ("one", "two"):
        facts = describe_archive(tmp_path / folder / "m.pt2")
        expected[facts.content] = facts
    exchange(path, tmp_path / "one")
    content = hash_file(path) if known else None
    look, read = archive_reader.stat_file, zipfile.ZipFile.read

    def look_before_opening(place):
        exchange(path, tmp_path / "two")
        return look(place)

    def read_and_put_back(members, name):
        if back:
            exchange(path, tmp_path / "one")
        return read(members, name)

    monkeypatch.setattr(archive_reader, "stat_file", look_before_opening)
    monkeypatch.setattr(zipfile.ZipFile, "read", read_and_put_back)
    try:
        facts = describe_archive(path, content)
    except SourceError as error:
        assert "changed while it was read" in str(error)
    else:
        assert facts == expected[facts.content]


def only(path):
    [each] = describe_archive(path).programs
    return each.program


@pytest.mark.slow
def test_same_program_saved_again_has_the_same_digest(tmp_path):
    """In another process, from another file: stack traces and object ids don't count."""
    code = (
        "import sys, torch; _ = [object() for _ in range(10**5)]\n"
        f"sys.path.insert(0, {str(tmp_path)!r})\n"
        "from again import Scale\n"
        "from torch.export import export, save\n"
        "save(export(Scale().requires_grad_(False), (torch.ones(2, 4),)), sys.argv[1])"
    )
    body = (
        "\n\n\nimport torch\n"
        "class Scale(torch.nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.linear = torch.nn.Linear(4, 4)\n"
        "        torch.nn.init.constant_(self.linear.weight, 2.0)\n"
        "        torch.nn.init.zeros_(self.linear.bias)\n"
        "    def forward(self, x):\n"
        "        return torch.relu(self.linear(x))\n"
    )
    digests = []
    for number in range(2):
        (tmp_path / "again.py").write_text("\n" * number + body)
        path = tmp_path / f"{number}.pt2"
        done = run_python("-c", code, str(path))
        assert done.returncode == 0, done.stderr
        digests.append(only(path))
    assert digests[0] == digests[1]


def _aliased():
    model = Scale()
    model.other = model.linear.weight
    return model


CHANGES = {
    "weights": lambda: program(Scale(factor=2.5)),
    "operator": lambda: program(Other()),
    "shape": lambda: program(size=3),
    "dtype": lambda: export(Scale().half().requires_grad_(False), (torch.ones(2, 4).half(),)),
    "range": lambda: program(dynamic=({0: Dim("n", min=2, max=8)},)),
    "gradients": lambda: export(Scale(), (torch.ones(2, 4),)),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_every_change_of_the_program_changes_its_digest(tmp_path, change):
    before = only(archive(tmp_path / "a.pt2", m=program()))
    assert only(archive(tmp_path / "b.pt2", m=change())) != before


def test_bounds_of_a_range_count(tmp_path):
    first = program(dynamic=({0: Dim("n", min=2, max=8)},))
    second = program(dynamic=({0: Dim("n", min=2, max=9)},))
    assert only(archive(tmp_path / "a.pt2", m=first)) != only(archive(tmp_path / "b.pt2", m=second))


def test_one_changed_method_leaves_the_others_digests(tmp_path):
    def digests(path):
        return {each.entry: each.program for each in describe_archive(path).programs}

    before = digests(archive(tmp_path / "a.pt2", x=program(), y=program(Other())))
    after = digests(archive(tmp_path / "b.pt2", x=program(), y=program(Other(factor=3.0))))
    assert before["x"] == after["x"]
    assert before["y"] != after["y"]


# Bad archives: one clear message each


def _truncated(path):
    path.write_bytes(path.read_bytes()[:-200])


def _bit_flipped(path):
    data = bytearray(path.read_bytes())
    with zipfile.ZipFile(path) as members:
        weight = next(i for i in members.infolist() if i.filename.endswith("weights/weight_0"))
    at = weight.header_offset
    lengths = data[at + 26 : at + 30]  # of the name and the extra field
    start = at + 30 + lengths[0] + 256 * lengths[1] + lengths[2] + 256 * lengths[3]
    data[start] ^= 1
    path.write_bytes(data)


def _another_zip(path):
    with zipfile.ZipFile(path, "w") as members:
        members.writestr("a/readme", "hello")


def _renamed_method(name):
    def rename(path):
        with zipfile.ZipFile(path) as old:
            members = {n: old.read(n) for n in old.namelist()}
        with zipfile.ZipFile(path, "w") as new:
            for member, data in members.items():
                new.writestr(member.replace("models/m.json", f"models/{name}.json"), data)

    return rename


def _without_programs(path):
    with zipfile.ZipFile(path, "w") as members:
        members.writestr("a/archive_format", "pt2")


def _outside(path):
    with zipfile.ZipFile(path, "a") as members:
        members.writestr("a/../../outside", "x")


def _twice(path):
    with zipfile.ZipFile(path, "a") as members:
        root, _, name = members.namelist()[0].partition("/")
        members.writestr(f"{root}/{name.upper()}", "x")


def _no_json(path):
    with zipfile.ZipFile(path) as old:
        members = {n: old.read(n) for n in old.namelist()}
    with zipfile.ZipFile(path, "w") as new:
        for member, data in members.items():
            new.writestr(member, b"{}" if member.endswith("models/m.json") else data)


BAD = {
    "empty": (lambda path: path.write_bytes(b""), "not a readable PT2 archive"),
    "text": (lambda path: path.write_text("hello"), "not a readable PT2 archive"),
    "truncated": (_truncated, "truncated"),
    "bit flipped": (_bit_flipped, "not a readable PT2 archive"),
    "another zip": (_another_zip, "is not a PT2 archive"),
    "no programs": (_without_programs, "contains no exported program"),
    "path in method": (_renamed_method("../x"), ".."),
    "separator in method": (_renamed_method("x/y"), "method name 'x/y'"),
    "outside": (_outside, "without '..'"),
    "twice": (_twice, "two members have the same name"),
    "not a program": (_no_json, "is not an exported program"),
}


@pytest.mark.parametrize(("damage", "words"), BAD.values(), ids=BAD)
def test_bad_archive_is_a_clear_error(tmp_path, damage, words):
    path = archive(tmp_path / "a.pt2", m=program())
    damage(path)
    with pytest.raises(SourceError, match=r"a\.pt2: ") as error:
        describe_archive(path)
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_folder_with_an_archive_of_two_methods_is_an_error(models):
    (models / "m").mkdir()
    archive(models / "m" / "x.pt2", a=program(), b=program(Other()))
    with pytest.raises(SourceError, match="has 2 methods"):
        methods_of(models, "m")


def test_sources_do_not_import_torch(models):
    archive(models / "m.pt2", a=program())
    code = (
        "import sys, pathlib\n"
        "from pipeline.program.archive_facts import describe_archive\n"
        "from pipeline.program.sources import find_sources, method_sources\n"
        "found, _ = find_sources(pathlib.Path(sys.argv[1]))\n"
        "print(list(method_sources(found['m'], describe_archive)))\n"
        "assert 'torch' not in sys.modules\n"
    )
    out = subprocess.run(
        [sys.executable, "-c", code, str(models)], capture_output=True, text=True, check=True
    )
    assert out.stdout.strip() == "['a']"


def test_written_torch_version_does_not_count(tmp_path):
    path = archive(tmp_path / "a.pt2", m=program())
    before = only(path)
    copy = tmp_path / "b.pt2"
    shutil.copy(path, copy)
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(copy, "w") as new:
        for member in old.namelist():
            data = old.read(member)
            if member.endswith("models/m.json"):
                data = json.dumps({**json.loads(data), "torch_version": "1.2.3"}).encode()
            new.writestr(member, data)
    assert only(copy) == before


def test_a_pointer_of_git_lfs_is_told(tmp_path):
    (tmp_path / "m.pt2").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\n")
    with pytest.raises(SourceError, match=r"m\.pt2: is a Git LFS pointer without its content"):
        describe_archive(tmp_path / "m.pt2")
