"""Wrong values at every key of a config: each message is in this project's words."""

import copy
import itertools
import re

import pytest

from pipeline.features.schemas.config_schema import json_schema
from pipeline.store.errors import ConfigErrors
from tests.support.configs import parse_config

BASE = {"model": "m", "methods": {"forward": {"partitioners": []}}}
WRONG = [-3, "a b", [1], {"a b": 3}, {"native": -1}, True, "", 3.5, [["x"]], {"x": {"y": [1]}}]
# Names that pydantic gives to members of unions and to its validators.
PYDANTIC = re.compile(r"function-|constrained-|\b(?:dict|tuple|list)\[|lax-or|json-or|\[key\]")
DEPTH = 5


def find_paths(schema, whole, depth=0):
    """Yield the paths of all keys in a JSON schema; `*` stands for any key of a mapping."""
    while "$ref" in schema:
        target = whole
        for name in schema["$ref"].split("/")[1:]:
            target = target[name]
        schema = target
    for kind in ("anyOf", "oneOf", "allOf"):
        for member in schema.get(kind, ()):
            yield from find_paths(member, whole, depth)
    keys = schema.get("properties", {})
    others = [schema.get("additionalProperties"), *schema.get("patternProperties", {}).values()]
    of_any_key = [("*", other) for other in others if isinstance(other, dict)]
    for key, value in [*keys.items(), *of_any_key]:
        yield (key,)
        if depth < DEPTH:
            yield from ((key, *path) for path in find_paths(value, whole, depth + 1))


def with_value(path, value):
    """Return BASE with a value at a path."""
    document = copy.deepcopy(BASE)
    place = document
    names = [
        name if name != "*" else "forward" if before == "methods" else "native"
        for before, name in itertools.pairwise(("", *path))
    ]
    for name in names[:-1]:
        if not isinstance(place.get(name), dict):
            place[name] = {}
        place = place[name]
    place[names[-1]] = value
    return document


def test_no_message_is_in_the_words_of_pydantic():
    schema = json_schema()
    paths = sorted(set(find_paths(schema, schema)))
    assert len(paths) > 1000
    values = itertools.cycle(WRONG)
    checked = 0
    for path in paths:
        for value in itertools.islice(values, 2):
            try:
                parse_config("p", with_value(path, value), "f.yaml")
            except ConfigErrors as errors:
                checked += 1
                text = str(errors).replace(f"{path[-1]}[", "")
                assert not PYDANTIC.search(text), (path, value, text)
                assert "not allowed here" not in text, (path, value, text)
    assert checked > 2000


@pytest.mark.parametrize(
    ("validate", "message"),
    [
        (
            {"gates": {"max_latency": {"a b": 3}}},
            "validate.gates.max_latency.'a b': is 'a b', must be a device of validate.devices, "
            "such as native",
        ),
        (
            {"gates": {"max_peak_memory": {"native": "3XB"}}},
            "validate.gates.max_peak_memory.native: is '3XB', must be a size such as 40MB",
        ),
        (
            {"gates": {"max_memory_growth": [1]}},
            "validate.gates.max_memory_growth: is a list, must be a share such as 0.02 or 2%",
        ),
        (
            {"gates": {"max_latency": {}}},
            "max_latency: is an empty mapping, must have a limit for each device, or one for all",
        ),
        (
            {"gates": {"max_latency": "5ms"}},
            "validate.gates.max_latency: is '5ms', must be a number of milliseconds, such as 5.0",
        ),
        (
            {"gates": {"max_load_time": {"native": "2s"}}},
            "max_load_time.native: is '2s', must be a number of milliseconds, such as 5.0",
        ),
        (
            {"device_repeats": {"native": 1}},
            "validate.device_repeats.native: is 1, must be at least 2",
        ),
        (
            {"metrics": {"top1": {"min": 0.5, "device": "a b"}}},
            "validate.metrics.top1.device: is 'a b', must be a device of validate.devices",
        ),
        (
            {"gates": {"max_latency": {"d" * 200: 3}}},
            "must have at most 128 characters",
        ),
    ],
)
def test_values_for_devices(validate, message):
    with pytest.raises(ConfigErrors) as caught:
        parse_config("p", {**BASE, "validate": validate}, "f.yaml")
    (line,) = str(caught.value).splitlines()
    assert message in line


def test_a_mapping_of_partitioners_becomes_a_list():
    methods = {"f": {"partitioners": {"xnnpack": {}}}}
    with pytest.raises(ConfigErrors) as caught:
        parse_config("p", {**BASE, "methods": methods}, "f.yaml")
    assert str(caught.value).endswith(
        "must be a list; write `[xnnpack: {}]`, with its options in the braces"
    )
