"""The generated parts of docs/ are current and complete, and their examples are valid."""

import pytest
import yaml

from pipeline.backends import BACKENDS, QUANTIZERS
from pipeline.features.contracts.linking import backend_links
from pipeline.store.errors import ConfigErrors
from tests.support.configs import parse_config, read_configs
from tools.reference.config import beside, example, example_of, keys, role_options
from tools.reference.errors import Message, entries, entry_of, messages
from tools.reference.pages import PARTS, with_parts

ROLES = [
    *((name, "partitioner") for name in BACKENDS),
    *((name, "quantizer") for name in QUANTIZERS),
]


@pytest.mark.parametrize("page", sorted({page for page, _ in PARTS}), ids=lambda page: page.name)
def test_page_is_current(page):
    text = page.read_text(encoding="utf-8")
    assert with_parts(page, text) == text, "run `python -m tools.reference`"


def test_every_key_has_a_meaning_and_an_example():
    for path, key in keys().items():
        assert key.meaning, path
        assert key.groups or example(path), path


def test_a_key_without_an_example_is_an_error():
    with pytest.raises(KeyError):
        example("emit.nonsense")


def test_the_examples_of_keys_are_valid(tmp_path):
    """Each example is tested by itself, in a config of two methods."""
    (tmp_path / "_phone.yaml").write_text("model: m\nmethods: {decode: {}}\n", encoding="utf-8")
    written = [path for path, key in keys().items() if not key.groups]
    for path in written:
        document = {"model": "m", "methods": {"decode": {}, "encode": {"partitioners": []}}}
        merge(document, NEEDED.get(path, {}))
        merge(document, example_of(path))
        if path != "methods.<method>.recipe":
            document["methods"]["decode"].setdefault("partitioners", ["xnnpack"])
        text = yaml.safe_dump(document, sort_keys=False)
        name = path.replace("<method>", "decode").replace("<metric>", "top1")
        (tmp_path / f"{name}.yaml").write_text(text, encoding="utf-8")
    found = read_configs(tmp_path)
    assert not found.problems
    assert len(found.configs) > len(written)


# Other settings that keys require.
NEEDED = {
    "package": {"matrix": {"size": ["small"]}},
    "matrix": {"package": "of-${matrix.size}"},
    "emit.metadata_revision": {"emit": {"metadata": True}},
    "family.base": {"family": {"name": "assistant"}},
    "family.share": {"family": {"name": "assistant"}},
    **{
        f"tune.{name}": {"tune": {"space": {"methods.encode.edge": [{}]}}}
        for name in ("objectives", "limits", "trials", "seed")
    },
    "validate.sequences": {"emit": {"memory_planning": {"share_mutable_buffers": True}}},
}


def merge(document, part):
    for key, value in part.items():
        if isinstance(value, dict) and isinstance(document.get(key), dict):
            merge(document[key], value)
        else:
            document[key] = value


@pytest.mark.parametrize(("name", "role"), ROLES)
def test_the_examples_of_options_are_valid(name, role):
    model = (BACKENDS if role == "partitioner" else QUANTIZERS)[name].options
    for option in role_options(name, role, model):
        assert option.meaning or BACKENDS[name].host.requirements, option.name
        given = {**beside(name, role, option.name), option.name: option.example}
        if role == "partitioner":
            method = {"partitioners": [{name: given}]}
        else:
            method = {"partitioners": [], "quantize": {"quantizer": name, **given}}
        parse_config("p", {"model": "m", "methods": {"f": method}}, "p.yaml")


def test_a_wrong_example_is_an_error():
    method = {"partitioners": [{"xnnpack": {"per_op_mode": "yes"}}]}
    with pytest.raises(ConfigErrors):
        parse_config("p", {"model": "m", "methods": {"f": method}}, "p.yaml")


def test_every_message_has_a_cause_and_a_remedy():
    assert len(messages()) > 300
    assert [message for message in messages() if entry_of(message) is None] == []
    used = {entry_of(message) for message in messages()}
    unused = [entry.code for entry in entries() if entry not in used and not entry.templates]
    assert unused == []


def test_a_message_without_an_entry_is_seen():
    assert entry_of(Message("nowhere/x.py", "there is no such thing")) is None


def test_every_backend_says_what_a_device_links():
    names = {name for name, backend in BACKENDS.items() if not backend.plugin}
    assert backend_links().keys() == names
