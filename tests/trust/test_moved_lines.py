"""Reports quote a line only from an unchanged file; otherwise it would be the wrong line."""

import json

import pytest

from pipeline.plan.kinds.validate import ValidateInputs, validate_action
from pipeline.report.render import render_package
from pipeline.store.digest import hash_file
from tests.features.pages.test_render import FULL
from tests.plan.test_actions import SOURCES, config

MODEL, CONFIG = "models/m.py", "partition_configs/p.yaml"


@pytest.fixture
def report(tmp_path):
    """A record that names the third line of a model and the second one of a config."""
    texts = {MODEL: "# 1\n# 2\nguilty = x + y\n# 4\n", CONFIG: "# 1\natol: 1e-3\n"}
    for name, text in texts.items():
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text(text)
    left = {
        "operator": "add",
        "line": f"x + y  # {MODEL}:3, in forward",
        "module": "",
        "reason": "",
    }
    method, counts = next(iter(FULL["delegation"].items()))
    return {
        **FULL,
        "methods": [],
        "delegation": {method: {**counts, "left": [left]}},
        "places": {"validate.atol": f"{CONFIG}:2"},
        "sources": {name: hash_file(tmp_path / name) for name in texts},
    }


@pytest.mark.parametrize(("edited", "other"), [(MODEL, CONFIG), (CONFIG, MODEL)])
def test_lines_of_a_file_that_changed_are_not_quoted(report, tmp_path, edited, other):
    quoted = {MODEL: "guilty = x + y", CONFIG: "atol: 1e-3"}

    def page():
        return render_package(tmp_path, report)["report.html"].decode()

    assert all(line in page() for line in quoted.values()) and "changed since" not in page()
    path = tmp_path / edited
    path.write_text(path.read_text().replace("# 1", "# 1\ninnocent = 1"))
    assert "innocent" not in page() and quoted[edited] not in page()
    assert page().count("changed since") == 1 and quoted[other] in page()
    assert f'id="{edited}:' in page()  # the record's facts are still shown
    path.unlink()
    assert "changed since" not in page() and quoted[edited] not in page()


def test_a_record_knows_the_files_as_they_were_exported(built):
    """Lines move in both files: pages show none of them at first, then those of the next build."""
    model, config = "models/pair.py", "partition_configs/pair.yaml"
    sources = (model, "models/_parts.py", config)

    def record():
        return json.loads(built.bytes_of("pair", "report.json"))

    before = record()
    assert before["sources"] == {name: hash_file(built.root / name) for name in sources}
    for name in (model, config):
        path = built.root / name
        path.write_text(f"# innocent\n{path.read_text()}")
    assert built.doit("report") == 0
    page = built.bytes_of("pair", "report.html").decode()
    assert "innocent" not in page and "changed since" in page
    assert built.doit() == 0
    found = built.outcomes()
    assert {found[each] for each in found if each.startswith("compile")} == {"up-to-date"}, found
    after = record()
    assert after["sources"] == {name: hash_file(built.root / name) for name in sources}
    moved = {
        where: f"{config}:{int(p.rpartition(':')[2]) + 1}" for where, p in before["places"].items()
    }
    assert after["places"] == moved
    assert "changed since" not in built.bytes_of("pair", "report.html").decode()


def test_an_archive_whose_traces_name_other_lines_is_reported_on_again():
    """Nothing is measured again: `tests/features/moved_lines/test_quotes.py`."""

    def action(content, exported):
        methods = {n: s._replace(content=content, exported=exported) for n, s in SOURCES.items()}
        return validate_action(ValidateInputs(config(), {"m.pte": "bytes"}, methods))

    one, two = action("a", exported=False), action("b", exported=False)
    assert one.digest != two.digest and one.key["measured"] == two.key["measured"]
    one, two = action("a", exported=True), action("b", exported=True)
    assert one.digest == two.digest  # the exporter's files count


def test_another_text_of_a_config_is_shown_but_not_measured_again():
    def action(content):
        inputs = ValidateInputs(config(), {}, SOURCES, config_files={CONFIG: content})
        return validate_action(inputs)

    one, two = action("a"), action("b")
    assert one.digest != two.digest and one.key["measured"] == two.key["measured"]
