"""Modules of a workspace's folders: their unique names, and what a plain name refers to."""

import importlib
import sys

import pytest

from pipeline.features.passes.loading import package_of
from pipeline.program.import_errors import describe_load_error
from pipeline.program.workspace_modules import find_elsewhere

COUNTED = "import sys\nsys.counted += 1\n"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "counted", 0, raising=False)
    folder = tmp_path / "passes"
    folder.mkdir()
    return folder


def load(folder, name):
    with package_of(folder):
        return importlib.import_module(f"{folder.name}.{name}")


def write(folder, **texts):
    for name, text in texts.items():
        path = folder / f"{name.replace('__of__', '/')}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)


@pytest.mark.parametrize("name", ["safetensors", "types", "torch", "executorch", "json"])
def test_a_file_named_like_a_library_imports_the_library(folder, name):
    write(folder, **{name: f"import {name} as library\nMINE = 1\n"})
    module = load(folder, name)
    assert module.MINE == 1
    assert module.library is sys.modules[name] and not hasattr(module.library, "MINE")


def test_a_sibling_is_one_module_by_any_name(folder):
    write(folder, counted=COUNTED, parts__of__inner=COUNTED)
    text = (
        "import counted, parts.inner\nfrom . import counted as two\nfrom passes import counted as n"
        "\nfrom .parts import inner\nfrom parts.inner import sys as same\n"
        "assert counted is two is n and inner is parts.inner\n"
    )
    write(folder, a=text)
    load(folder, "a")
    assert sys.counted == 2


def test_a_module_that_imports_its_importer_by_its_plain_name_gets_the_same(folder):
    write(folder, a=f"{COUNTED}import b\nX = 1\n", b="import a\ndef get(): return a.X\n")
    assert load(folder, "a").b.get() == 1
    assert sys.counted == 1


def test_modules_are_forgotten_with_all_their_names(folder, tmp_path):
    write(folder, a="import b\nfrom .c import d\n", b="", c__of__d="")
    before, finders = dict(sys.modules), list(sys.meta_path)
    load(folder, "a")
    assert sys.modules == before and sys.meta_path == finders
    write(folder, b="NEW = 1\n")
    assert load(folder, "a").b.NEW == 1


def test_a_package_keeps_its_own_text(folder):
    write(folder, __init__="X = 5\n", a="from . import X\n")
    assert load(folder, "a").X == 5


def test_what_a_finder_after_the_path_finds_comes_before_a_sibling(folder, tmp_path, monkeypatch):
    """For example the finders of editable installations, even if the folder is on the path."""
    library = tmp_path / "source" / "acme.py"
    library.parent.mkdir()
    library.write_text("INSTALLED = True\n")

    class Editable:
        def find_spec(self, name, path=None, target=None):
            if name == "acme":
                return importlib.util.spec_from_file_location(name, library)

    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, Editable()])
    monkeypatch.setattr(sys, "path", [*sys.path, str(folder)])
    write(folder, acme="from acme import INSTALLED\n")
    try:
        assert load(folder, "acme").INSTALLED
    finally:
        sys.modules.pop("acme", None)


def test_a_folder_of_data_in_the_workspace_hides_no_sibling(folder, monkeypatch):
    (folder.parent / "common").mkdir()
    write(folder, common="X = 1\n", a="from common import X\n")
    monkeypatch.setattr(sys, "path", [str(folder.parent), *sys.path])
    assert load(folder, "a").X == 1
    assert find_elsewhere("common", (str(folder.parent),)) is None


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("import json\njson.make()\n", "passes/a.py:2: AttributeError: "),
        ("from json import make\n", "passes/a.py:1: ImportError: "),
        ("import json.make\n", "passes/a.py:1: ModuleNotFoundError: "),
    ],
)
def test_a_file_that_an_installed_module_hides_is_named(folder, text, place):
    write(folder, a=text, json="def make(): pass\n")
    with pytest.raises(Exception) as caught:
        load(folder, "a")
    line = describe_load_error(caught.value, folder)
    assert place in line
    assert line.endswith(
        "`import json` means the installed json, which hides passes/json.py; to import that "
        "file, write `from . import json`"
    )


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("from pipeline import nothing", "package of pte-pipeline"),
        ("import pipeline.nothing", "package of pte-pipeline"),
        ("from pipeline.store import nothing", "package of pte-pipeline"),
        ("from json.decoder import nothing", "installed json"),
    ],
)
def test_a_file_at_the_top_that_an_installed_module_hides_is_named(folder, text, name):
    write(folder, a=text)
    module = "json" if "json" in text else "pipeline"
    (folder.parent / module).mkdir()
    with pytest.raises(ImportError) as caught:
        load(folder, "a")
    assert describe_load_error(caught.value, folder).endswith(
        f"`import {module}` means the {name}, which hides {module}/ of this workspace; rename it"
    )


def test_a_module_at_the_top_that_was_meant_hides_nothing(folder, monkeypatch):
    (folder.parent / "ours.py").write_text("X = 1\n")
    monkeypatch.setattr(sys, "path", [str(folder.parent), *sys.path])
    write(folder, a="from ours import Y")
    with pytest.raises(ImportError) as caught:
        load(folder, "a")
    assert "hides" not in describe_load_error(caught.value, folder)


def test_other_errors_name_no_file(folder):
    write(folder, a="import json\njson.make()\n")
    with pytest.raises(AttributeError) as caught:
        load(folder, "a")
    assert "hides" not in describe_load_error(caught.value, folder)


LIBRARY = """
import importlib, importlib.util, pickle
try:
    import optional
except ImportError:
    optional = None
is_there = importlib.util.find_spec("optional") is not None

def by_name(name):
    return importlib.import_module(name)

def restore(data):
    return pickle.loads(data)
"""


def test_a_library_that_tries_an_import_finds_no_module_of_the_workspace(
    folder, tmp_path, monkeypatch
):
    (tmp_path / "installed").mkdir()
    (tmp_path / "installed" / "tries.py").write_text(LIBRARY)
    monkeypatch.setattr(sys, "path", [str(tmp_path / "installed"), *sys.path])
    root = folder.parent / "workspace"
    root.mkdir()
    folder = folder.rename(root / "passes")
    pickled = b"coptional\nThing\n."
    text = "import tries\nassert tries.optional is None and not tries.is_there\n"
    text += f"thing = tries.restore({pickled!r})\nimport optional\n"
    text += "assert tries.by_name('optional') is optional and optional.Thing is thing\n"
    write(folder, optional="class Thing: pass\n", a=text)
    try:
        assert load(folder, "a").optional.Thing
    finally:
        sys.modules.pop("tries", None)
