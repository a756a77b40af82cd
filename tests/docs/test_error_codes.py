"""Each error has a code, a real message, and a page in `doit help`."""

import re
import sys
from itertools import chain
from types import ModuleType

import pytest

from pipeline.features.exporters.exporter import call_export_methods
from pipeline.features.help.error_codes import (
    describe_code,
    find_code,
    find_codes,
    read_errors,
    read_groups,
    show_error,
)
from pipeline.plan.golden import find_golden_mistakes
from pipeline.store.errors import PipelineError, SourceError
from pipeline.store.store import Store
from pipeline.store.workspace import Workspace
from tests.support.bench import REPOSITORY
from tests.support.error_entries import find_problems, make_workspace
from tests.support.error_records import is_like
from tools.reference.errors import (
    DATA,
    all_entries,
    entries,
    find_templates,
    groups,
    make_error_data,
    messages,
)

GROUPS = {group.code for group in groups()}
WITH_CONFIG = [entry for entry in entries() if entry.config]
_TEST = re.compile(r"(tests/[\w/]+\.py)::(\w+)(\[.+\])?")


def code_of(entry):
    return entry.code


@pytest.fixture(scope="module")
def workspace(tmp_path_factory):
    return make_workspace(tmp_path_factory.mktemp("errors") / "team")


def test_the_data_is_current():
    current = DATA.read_text(encoding="utf-8") == make_error_data()
    assert current, "run `python -m tools.reference`"


def test_a_code_is_of_one_error():
    codes = [entry.code for entry in (*all_entries(), *groups())]
    assert len({*codes}) == len(codes)
    assert all(re.fullmatch(r"PTE\d{3}", code) for code in codes)
    assert {f"{code[:4]}00" for code in codes} == GROUPS


def test_an_entry_quotes_a_message():
    assert [entry.code for entry in entries() if not entry.message] == []


@pytest.mark.parametrize("entry", WITH_CONFIG, ids=code_of)
def test_a_config_has_its_mistake(entry, workspace):
    lines = find_problems(workspace, entry.config)
    (line,) = [line for line in lines if is_like(line, entry.message)]
    assert show_error(line) == f"{line} [{entry.code}]"


@pytest.mark.parametrize("entry", entries(), ids=code_of)
def test_a_message_has_the_code_of_its_entry(entry):
    """Checks that the test exists; `tests/conftest.py` checks that it provokes the message."""
    assert find_code(entry.message) == entry.code
    if not entry.config:
        file, name, _ = _TEST.fullmatch(entry.test).groups()
        assert f"def {name}(" in (REPOSITORY / file).read_text(encoding="utf-8")


def test_a_message_of_the_code_has_the_code_of_its_entry():
    """Another entry may use the same words; a message of few words has its group's code."""
    part_to_codes = {}
    for entry in entries():
        for part in chain.from_iterable(find_templates(entry)):
            part_to_codes.setdefault(part, set()).add(entry.code)
    wrong = []
    for message in messages():
        text = message.text.replace(" / ", "; ")
        code = find_code(text.replace("…", "x"))
        parts = [part.strip() for part in text.split("; ")]
        codes = set().union(*(part_to_codes.get(part, ()) for part in parts))
        if code not in codes | GROUPS:
            wrong.append((message, codes, code))
    assert wrong == []


def test_exporters_that_return_something_else():
    """errors.toml holds their messages, which `tests/conftest.py` checks against this test."""
    module = ModuleType("speech")
    module.__file__ = "models/speech.py"
    with pytest.raises(SourceError):
        call_export_methods(module, {})
    module.export_methods = list
    with pytest.raises(SourceError):
        call_export_methods(module, {})


def test_a_code_has_a_page():
    for code in (*read_errors(), *read_groups()):
        lines = describe_code(code.lower())
        assert lines[0].startswith(f"{code}: ") and lines[-1].startswith("more: docs/reference/")
        assert max(map(len, lines[1:])) <= 100
        assert any(line.startswith("Remedy: ") for line in lines)
    assert describe_code("lower") is None
    for code, near in (("PTE1", "PTE100"), ("PTE1111", "PTE111")):
        line = f"no error has the code {code}; did you mean {near}?"
        with pytest.raises(PipelineError, match=re.escape(line)):
            describe_code(code)


def test_mistakes_in_recorded_outputs_have_one_code(tmp_path):
    """Their texts are in variables, so `tools.reference` doesn't find them."""
    folder = tmp_path / "golden" / "heads"
    folder.mkdir(parents=True)
    for name in ("a.npz", "a.safetensors", "b.txt", "clasify.npz"):
        (folder / name).write_bytes(b"")
    workspace = Workspace(tmp_path, Store(tmp_path / "store"), 1)
    mistakes = list(find_golden_mistakes(workspace, "heads", ["a", "classify"]))
    assert len(mistakes) == 3
    for mistake, hint in mistakes:
        assert find_code(f"partition_configs/heads.yaml:1: model: {mistake}; {hint}") == "PTE209"


@pytest.mark.parametrize("library", ["s3fs: pip install 's3fs'", "pip install 'x'", "a package: x"])
def test_a_missing_library_of_a_remote_has_one_code(library):
    assert find_code(f"remote https://host/x: https:// needs {library}") == "PTE611"


def test_the_code_is_at_the_end_of_each_line(monkeypatch):
    two = (
        "a.yaml: model: no model 'x'; did you mean 'y'? known: y\n"
        "a.yaml:2: 'f' occurs twice, first in line 1"
    )
    assert find_codes(two) == ["PTE110", "PTE107"]
    assert find_codes("RuntimeError: no such thing\n  a line of it", "compile") == ["PTE300", ""]
    assert find_code("partition_configs/a.yaml: is not as it was") == "PTE100"
    assert find_code("who knows", "warning") == ""  # a warning without an entry
    assert find_code("who knows") == "PTE700" and find_codes("") == []
    line = "no packages: no config in partition_configs/; `doit init` creates an example"
    assert show_error(line) == f"{line} [PTE703]"
    monkeypatch.setattr(sys, "argv", ["/usr/bin/pte", "lower"])
    assert show_error(line) == f"{line.replace('doit', 'pte')} [PTE703]"


def test_a_place_alone_gives_no_code():
    """A mistake without an entry gets its group's code, wherever it is."""
    for place in ("methods.decode.edge.passes[0]", "validate.devices[1]", "family.base"):
        assert find_codes(f"partition_configs/p.yaml:3: {place}: is not so") == ["PTE100"]
