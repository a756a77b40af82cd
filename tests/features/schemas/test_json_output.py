"""With `--json`, commands print a single line that follows its schema in docs/reference."""

import json
import os
import shutil

import jsonschema
import pytest

from pipeline.cli.commands import VERBS
from pipeline.features.schemas.record_schemas import find_schemas, verb_schema
from pipeline.moments import load
from pipeline.plan.plan import Plan
from pipeline.store.errors import PipelineError
from pipeline.store.store import Store
from pipeline.store.workspace import Workspace
from tests.features.gates.test_diff_packages import git
from tests.support.bench import REPOSITORY
from tests.support.resident import run_python

REFERENCE = REPOSITORY / "docs" / "reference"
WITH_RECORD = [name for name, verb in VERBS.items() if verb.record]
WORDS = {
    "affected": ["HEAD"],
    "contract": ["pair"],
    "diff": ["HEAD"],
    "explain": ["pair"],
    "why": ["models/pair.py"],
}
# `plan` has a test below; `diagnose` and `sensitivity` are tested with their features.
APART = ("plan", "diagnose", "sensitivity")


def closed(schema):
    """Return a schema in which records allow no further fields."""
    if isinstance(schema, list):
        return [closed(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    parts = {name: closed(part) for name, part in schema.items()}
    if parts.get("type") == "object" and "properties" in parts:
        parts["additionalProperties"] = False
    return parts


def validate(name, record):
    schema = closed(verb_schema(VERBS[name]))
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.Draft202012Validator(schema).validate(record)


def ask(plan, name, *words, **flags):
    """Return the record of a verb, after a round trip through JSON, and the error that followed."""
    records, error = [], None
    try:
        for record in load(VERBS[name].run)(plan, words, json=True, **flags):
            records.append(record)
    except PipelineError as refusal:
        error = refusal
    (record,) = json.loads(json.dumps(records))
    validate(name, record)
    return record, error


@pytest.fixture(scope="module")
def plan(_built, tmp_path_factory):
    """A plan of the sample `pair` after its first run, committed, with another, invalid config."""
    root = shutil.copytree(_built.root, tmp_path_factory.mktemp("json") / "pair")
    (root / ".gitignore").write_text("build/\n.store/\n.doit*\n__pycache__/\n")
    git(root, "init", "-q", "-b", "master")
    git(root, "add", "-A")
    git(root, "commit", "-qm", "one")
    (root / "partition_configs" / "wrong.yaml").write_text("model: pair\nmethods: {encoder: {}}\n")
    plan = Plan(Workspace(root, Store(root / ".store"), 1))
    plan.trust_last_exports()
    return plan


def test_each_schema_in_the_reference_is_current():
    for name, make in find_schemas().items():
        text = (REFERENCE / f"{name}.schema.json").read_text(encoding="utf-8")
        assert json.loads(text) == json.loads(json.dumps(make())), "run `python -m tools.reference`"


def test_a_verb_with_a_record_has_the_option_and_no_other_has():
    assert {*WORDS, "backends", "cache", "packages", *APART} == {*WITH_RECORD}
    assert [name for name, verb in VERBS.items() if "json" in verb.options] == WITH_RECORD


@pytest.mark.parametrize("name", sorted({*WITH_RECORD} - {*APART}))
def test_what_a_verb_yields_keeps_to_its_schema(name, plan):
    record, error = ask(plan, name, *WORDS.get(name, ()))
    assert error is None or name == "diff"
    assert record["format"] == 1
    assert any(value for key, value in record.items() if key != "format")


def test_a_plan_has_actions_and_mistakes_and_the_same_exit_status(plan):
    record, error = ask(plan, "plan")
    assert str(error) == "1 package with mistakes: wrong"
    assert {action["state"] for action in record["actions"]} == {"up-to-date"}
    assert {mistake["package"] for mistake in record["mistakes"]} == {"wrong"}
    assert "methods.encoder" in record["mistakes"][0]["mistake"]
    assert ask(plan, "plan", "pair/decode")[0]["actions"][-1]["methods"] == ["decode"]
    with pytest.raises(PipelineError, match="can't be combined with --json"):
        list(load(VERBS["plan"].run)(plan, (), resolved=True, json=True))


def test_a_package_is_listed_with_its_config_and_methods(plan):
    listed, _ = ask(plan, "packages")[0]["packages"]
    assert listed["configs"] == ["partition_configs/pair.yaml"]
    assert (listed["source"], listed["methods"]) == ("models/pair.py", ["encode", "decode"])


def test_of_the_last_run_and_of_all_packages(plan):
    assert ask(plan, "explain")[0]["last_run"]["chain"]
    joined = ask(plan, "contract", "pair", all=True)[0]
    assert joined["all"]["packages"] == ["pair"] and not joined["packages"]
    with pytest.raises(PipelineError, match="only `doit cache stats` does"):
        list(load(VERBS["cache"].run)(plan, ["gc"], json=True))


ROADS = {
    "models/pair.py": ("model", "models/pair.py", None),
    "partition_configs/pair.yaml": ("config", "partition_configs/pair.yaml", None),
    "xnnpack": ("backend", "xnnpack", ["decode"]),
    "XnnpackBackend": ("backend", "xnnpack", ["decode"]),
    "torchao": ("toolchain", "torchao", None),
}


@pytest.mark.parametrize("thing", ROADS)
def test_why_names_the_road(thing, plan):
    record, _ = ask(plan, "why", thing)
    roads = [(row["road"], row["through"], row["methods"]) for row in record["roads"]]
    assert ROADS[thing] in roads
    assert record["not_known"].keys() == {"wrong"}


def test_why_of_a_tensor_and_of_nothing(plan):
    roads = ask(plan, "why", "*.weight")[0]["roads"]
    assert {row["road"] for row in roads} == {"weight"} and all(row["lower"] for row in roads)
    (*_, last) = load(VERBS["why"].run)(plan, ["models/nothing.py"])
    assert last == "0 packages depend on models/nothing.py; there is no such file"
    lines = list(load(VERBS["why"].run)(plan, ["nothing.txt"]))
    assert lines[-1] == "0 packages depend on nothing.txt"


@pytest.mark.slow
def test_stdout_has_json_alone_and_stderr_the_error(plan):
    root = plan.workspace.root
    environment = {**os.environ, "PTE_PIPELINE_STORE": str(root / ".store")}
    for words, status in ((["plan", "--json"], 1), (["list", "--json"], 0)):
        done = run_python("-m", "doit", *words, cwd=root, env=environment)
        assert done.returncode == status
        record = json.loads(done.stdout)
        assert done.stdout.count("\n") == 1 and record["format"] == 1
        assert ("plan: 1 package with mistakes" in done.stderr) == bool(status)
    names = [package["package"] for package in record["packages"]]
    assert names == ["pair", "wrong"]
    validate("packages", record)
