import json
import subprocess
import sys

import jsonschema
import pytest

from pipeline.features.contracts.target_schema import target_schema
from pipeline.features.schemas.config_schema import json_schema
from pipeline.features.schemas.editor_files import main
from pipeline.features.schemas.schema_generator import DIALECT, SchemaGenerator
from pipeline.store.errors import ConfigErrors
from tests.support.bench import REPOSITORY
from tests.support.configs import parse_config, read_configs

SCHEMA = json_schema()
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)


def config(**parts):
    return {"model": "m", "methods": {"f": {"partitioners": ["xnnpack"]}}, **parts}


def method(**parts):
    return config(methods={"f": {"partitioners": [], **parts}})


def xnnpack(**options):
    return method(partitioners=[{"xnnpack": options}])


def test_it_is_a_schema():
    assert SCHEMA["$schema"] == DIALECT
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


def test_every_definition_is_used_and_every_one_used_is_there():
    used = {part.partition('"')[0] for part in json.dumps(SCHEMA).split('"#/$defs/')[1:]}
    assert used == SCHEMA["$defs"].keys()


def test_the_file_is_current(tmp_path):
    written = tmp_path / "schema.json"
    run = [sys.executable, "-m", "pte_pipeline.schema", str(written)]
    subprocess.run(run, check=True, cwd=REPOSITORY, stdout=subprocess.DEVNULL)
    path = REPOSITORY / "partition_configs" / "schema.json"
    assert path.read_bytes() == written.read_bytes(), "run `python -m pte_pipeline.schema`"
    assert json.loads(written.read_bytes()) == SCHEMA


def test_the_configs_of_this_repository_are_valid():
    documents = read_configs(REPOSITORY / "partition_configs").documents
    assert documents
    for document in documents.values():
        VALIDATOR.validate(document.data)


def objects(schema):
    """Yield every part of the schema that describes a mapping."""
    if isinstance(schema, list):
        for part in schema:
            yield from objects(part)
    elif isinstance(schema, dict):
        if schema.get("type") in ("object", ["object", "null"]):
            yield schema
        for part in schema.values():
            yield from objects(part)


def test_no_mapping_takes_unknown_keys_and_every_key_has_its_help():
    for schema in objects(SCHEMA):
        assert schema["additionalProperties"] is False
        for name, part in schema.get("properties", {}).items():
            assert "description" in part or "$ref" in part or part.get("const"), name


@pytest.mark.parametrize(
    "document",
    [
        config(),
        config(target="android", emit={"external_constants": True}),
        config(constant_methods={"a": 1, "b": 1.5, "c": "x", "d": True, "e": [1, "x"]}),
        config(validate={"atol": 0, "min_sqnr": 20.5, "gates": {"max_size": "1.5 MiB"}}),
        config(validate={"gates": {"max_size": 1000, "min_delegated_ops": 1}}),
        config(validate={"gates": {"max_size_growth": "2%", "max_delegation_drop": 0.05}}),
        config(validate={"gates": {"allow_portable_ops": [], "max_planned_memory": "2MB"}}),
        config(validate={"methods": {"f": {"gates": {"allow_portable_ops": ["aten.view*"]}}}}),
        config(validate={"gates": {"max_sqnr_drop": 3, "max_latency_ratio": 1.5}}),
        method(),
        method(quantize={"quantizer": "xnnpack", "per_channel": False}),
        method(quantize={"quantizer": "xnnpack", "calibration": "a/b.npz", "batches": 4}),
        method(quantize={"quantizer": "xnnpack", "calibration": ["a.pt", "b.safetensors"]}),
        method(quantize={"quantizer": "xnnpack", "calibration": "generated"}),
        method(
            quantize={
                "quantizer": "xnnpack",
                "modules": {"a.0": {"dynamic": True}, "b": "none"},
                "operators": {"add": "none", "linear": {"per_channel": False}},
            }
        ),
        method(quantize={"quantizer": "torchao", "scheme": "int4_weight_only"}),
        method(quantize={"quantizer": "torchao", "embedding": {"bits": 4, "group_size": 32}}),
        config(methods={"f": {"recipe": "xnnpack_fp32"}}),
        xnnpack(),
        xnnpack(per_op_mode=True, config_precisions=["fp32"], configs=["AddConfig"]),
    ],
)
def test_valid(document):
    VALIDATOR.validate(document)
    parse_config("p", document, "f.yaml")


@pytest.mark.parametrize(
    "document",
    [
        None,
        [],
        {},
        {"model": "m"},
        config(modle="m"),
        config(package="p"),
        config(model=1),
        config(model="../m"),
        config(model="a..b"),
        config(target=None),
        config(methods={}),
        config(methods={"f": None}),
        config(methods={"f": {}}),
        config(methods={"a b": {"partitioners": []}}),
        config(constant_methods={"a": None}),
        config(constant_methods={"a": {"b": 1}}),
        config(constant_methods={"a b": 1}),
        config(emit={"external_constants": "yes"}),
        config(emit={"initialized_buffers": "cache"}),
        config(validate={"atol": -1}),
        config(validate={"inputs": 2.5}),
        config(validate={"steps": 0}),
        config(validate={"gates": {"max_size": "40 megs"}}),
        config(validate={"gates": {"min_delegated_nodes": 90}}),
        config(validate={"gates": {"max_size_growth": "two"}}),
        config(validate={"gates": {"allow_portable_ops": "aten.add"}}),
        config(validate={"methods": {"f": {"gates": {"max_size": "1MB"}}}}),
        method(partitioners=None),
        method(partitioners="xnnpack"),
        method(partitioners=["nonsense"]),
        method(partitioners=[{"nonsense": {}}]),
        method(partitioners=[{}]),
        method(quantize="xnnpack"),
        method(quantize={}),
        method(quantize={"quantizer": "nonsense"}),
        method(quantize={"quantizer": "xnnpack", "weight_qmax": 128}),
        method(quantize={"quantizer": "xnnpack", "bits": 4}),
        method(quantize={"quantizer": "xnnpack", "calibration": "a.csv"}),
        method(quantize={"quantizer": "xnnpack", "calibration": "/a.npz"}),
        method(quantize={"quantizer": "xnnpack", "calibration": "random"}),
        method(quantize={"quantizer": "xnnpack", "calibration": []}),
        method(quantize={"quantizer": "xnnpack", "batches": 0}),
        method(quantize={"quantizer": "xnnpack", "modules": {"a": {}, "b": {"bits": 4}}}),
        method(quantize={"quantizer": "xnnpack", "modules": {"a": "nothing"}}),
        method(quantize={"quantizer": "xnnpack", "modules": {"a..b": "none"}}),
        method(quantize={"quantizer": "xnnpack", "operators": {"conv9d": "none"}}),
        method(quantize={"quantizer": "torchao", "scheme": "int3"}),
        method(quantize={"quantizer": "torchao", "embedding": {"bits": 3}}),
        method(recipe="xnnpack_fp32"),
        config(methods={"f": {"recipe": "nonsense"}}),
        config(methods={"f": {"recipe": "qnn_fp16"}}),
        config(methods={"f": {"recipe": "xnnpack_fp32", "quantize": {"quantizer": "xnnpack"}}}),
        xnnpack(per_op_mode="yes"),
        xnnpack(per_op=True),
        xnnpack(configs=[]),
        xnnpack(configs=["nonsense"]),
        xnnpack(config_precisions=["fp32", "fp32"]),
    ],
)
def test_structurally_bad(document):
    assert not VALIDATOR.is_valid(document)
    with pytest.raises(ConfigErrors):
        parse_config("p", document, "f.yaml")


@pytest.mark.parametrize(
    "document",
    [
        {"target": "android"},
        {"methods": {"f": {"partitioners": []}}},
        {"extends": "_base"},
        {"extends": ["_a", "_b"], "methods": {"f": {"quantize": None}, "g": None}, "emit": None},
        {"extends": "_a", "validate": {"gates": {"max_size": None}, "inputs": "${N:-3}"}},
        config(model="${MODEL}", validate={"atol": "${ATOL}"}),
        config(defaults={"quantize": {"dynamic": True}}, methods={"f": {}}),
        config(matrix={"a": ["x", 1, True], "b": {"y": {}, "z": {"defaults": {}, "target": "t"}}}),
        config(matrix={"a": ["x"]}, package="p-${matrix.a}"),
    ],
)
def test_valid_parts(document):
    VALIDATOR.validate(document)


@pytest.mark.parametrize(
    "document",
    [
        {"targt": "android"},
        {"extends": 3},
        {"extends": []},
        {"extends": "_a", "modle": "m"},
        {"extends": "_a", "methods": {"f": {"partitoners": []}}},
        {"extends": "_a", "methods": {"f": {"partitioners": [None]}}},
        {"extends": "_a", "methods": {"f": {"quantize": {"quantizer": "nonsense"}}}},
        {"extends": "_a", "validate": {"inputs": 2.5}},
        config(defaults=3),
        config(defaults={"partitioner": []}),
        config(matrix=["a"]),
        config(matrix={}),
        config(matrix={"a": "x"}),
        config(matrix={"a": []}),
        config(matrix={"a": {"x": {"matrix": {}}}}),
    ],
)
def test_structurally_bad_parts(document):
    assert not VALIDATOR.is_valid(document)


def test_a_method_may_be_left_out():
    left = config(methods={"f": {"partitioners": []}, "g": "omit"})
    VALIDATOR.validate(left)
    VALIDATOR.validate({"methods": {"g": "omit"}})
    parsed = parse_config("p", left, "p.yaml")
    assert (list(parsed.methods), parsed.omitted) == (["f"], ("g",))
    assert not VALIDATOR.is_valid(config(methods={"f": "omitt"}))
    with pytest.raises(ConfigErrors, match=r"methods: .*must name at least one"):
        parse_config("p", config(methods={"g": "omit"}), "p.yaml")


def test_schema_is_written_where_it_says(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main([]) == 1
    wrong = capsys.readouterr().err
    assert wrong.startswith("partition_configs/schema.json: No such file or directory; run it in")
    (tmp_path / "partition_configs").mkdir()
    assert main([]) == 0 and capsys.readouterr().out == "wrote partition_configs/schema.json\n"
    assert json.loads((tmp_path / "partition_configs/schema.json").read_text()) == json_schema()
    (tmp_path / "targets").mkdir()
    assert main([]) == 0 and capsys.readouterr().out.endswith("wrote targets/schema.json\n")
    assert json.loads((tmp_path / "targets/schema.json").read_text()) == target_schema(
        SchemaGenerator
    )
    assert main(["other.json"]) == 0 and capsys.readouterr().out == "wrote other.json\n"
    assert main(["--help"]) == 2 and main(["a", "b"]) == 2
