"""Files of targets/: what they may contain, and each mistake with its line."""

import json

import jsonschema
import pytest
import yaml

from pipeline.features.contracts.target_schema import target_schema
from pipeline.features.contracts.targets import (
    check_targets,
    describe_runtime,
    find_targets,
    format_target,
    missing_target,
    read_target,
)
from pipeline.features.schemas.schema_generator import SchemaGenerator
from pipeline.store.errors import ConfigErrors
from tests.support.bench import REPOSITORY


def write(root, text, name="phone"):
    path = root / "targets" / f"{name}.yaml"
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    return path


WHOLE = """
kernels: [portable, quantized]
operators:
  - aten::_fft_r2c.out
  - team::*
  - aten::add.out: [float32, int64]
  - {aten::mul.out: [float16]}
dtypes: [float32, bool]
backends: [xnnpack, VulkanBackend]
executorch: 1.4.1
runtime: et13
identifier: ET12
schema_version: 0
memory: {1: 256kB, 2: 8MB}
alignment: {segments: 4096, constants: 16}
devices: [native, pi5]
"""


def test_all_that_a_target_can_say(tmp_path):
    assert read_target(write(tmp_path, WHOLE)).resolved() == {
        "kernels": ["portable", "quantized"],
        "operators": [
            ["aten::_fft_r2c.out", None],
            ["team::*", None],
            ["aten::add.out", ["float32", "int64"]],
            ["aten::mul.out", ["float16"]],
        ],
        "dtypes": ["float32", "bool"],
        "backends": ["XnnpackBackend", "VulkanBackend"],
        "executorch": "1.4.1",
        "runtime": "et13",
        "identifier": "ET12",
        "schema_version": 0,
        "memory": {"1": 256_000, "2": 8_000_000},
        "alignment": {"segments": 4096, "constants": 16},
        "devices": ["native", "pi5"],
    }


SCHEMA = jsonschema.Draft202012Validator(target_schema(SchemaGenerator))


def test_the_schema_is_one_and_the_file_is_current():
    SCHEMA.check_schema(SCHEMA.schema)
    path = REPOSITORY / "docs" / "reference" / "targets.schema.json"
    remedy = "copy targets/schema.json that `python -m pte_pipeline.schema` writes beside targets/"
    assert json.loads(path.read_text()) == SCHEMA.schema, remedy
    assert all("description" in each for each in SCHEMA.schema["properties"].values())


@pytest.mark.parametrize(
    "text",
    [
        "kernels: [none]",
        "operators: [add]",
        "operators: [{aten::add.out: [float33]}]",
        "dtypes: [float]",
        "backends: [xnpack]",
        "executorch: '1'",
        "identifier: PTE",
        "schema_version: -1",
        "memory: {0: 1kB}",
        "memory: large",
        "alignment: 3",
        "devices: native",
        "devices: [native, native]",
        "alignment: {segment: 16}",
        "kernel: [portable]",
    ],
)
def test_the_schema_takes_what_the_parser_takes(tmp_path, text):
    SCHEMA.validate(strings(yaml.safe_load(WHOLE)))
    SCHEMA.validate({"memory": "2MB", "alignment": 16})
    with pytest.raises(ConfigErrors):
        read_target(write(tmp_path, text))
    assert not SCHEMA.is_valid(strings(yaml.safe_load(text)))


def strings(data):
    """Turn numbers used as keys into strings, as JSON and editors see them."""
    return json.loads(json.dumps(data))


def test_a_size_is_of_all_arenas_and_a_number_of_all_data(tmp_path):
    found = read_target(write(tmp_path, "memory: 2MB\nalignment: 32\n")).resolved()
    assert found["memory"] == {"0": 2_000_000}
    assert found["alignment"] == {"constants": 32, "payloads": 32, "planned_memory": 32}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "targets/phone.yaml: is empty; `doit contract --of-runtime` writes one"),
        ("- a", "targets/phone.yaml: is a list, must be a mapping"),
        ("kernel: [portable]", ":1: unknown key 'kernel'; did you mean 'kernels'?"),
        (
            "kernels: [portabel]",
            ":1: kernels[0]: is 'portabel', must be one of the known values",
        ),
        ("kernels: portable", "write [portable]"),
        ("backends: [xnnpak]", "did you mean 'xnnpack'?"),
        ("operators: [aten::ad.out]", "operators[0]: is 'aten::ad.out', must be one of the known"),
        ("operators: [aten.add.Tensor]", "must be an operator such as aten::add.out"),
        ("operators: [{aten::add.out: float32}]", "must name dtypes"),
        ("operators: [{aten::add.out: [float31]}]", "did you mean 'float32'?"),
        ("operators: [team::a, team::a]", "must not contain duplicates"),
        ("operators: 3", "must be a list"),
        ("operators: [[aten::add.out, float32]]", "must be an operator such as aten::add.out"),
        ("operators: [{aten::add.out: [[float32]]}]", "must name dtypes"),
        ("backends: [[xnnpack]]", "must be one of the known values"),
        ("kernels: [{portable: 1}]", "must be one of the known values"),
        ("dtypes: [{}]", "must be one of the known values"),
        ("memory: {1: {2: 3}}", "must be a size such as 40MB"),
        ("dtypes: [float]", "dtypes[0]: is 'float', must be one of the known values"),
        ("executorch: 1.4", "must be a string; quote it"),
        ("executorch: newest", "must be a release in quotes"),
        ("identifier: EX12", "must be the identifier of .pte files"),
        ("schema_version: -1", "must be at least 0"),
        ("memory: much", "must be a size such as 40MB"),
        ("memory: {0: 1MB}", "must be a size such as 2MB, or sizes by the number of the arena"),
        ("memory: {}", "must be a size such as 2MB"),
        ("alignment: 24", "must be a power of two"),
        ("alignment: {weights: 16}", "must be a power of two, or several by segments, constants"),
        ("alignment:", "alignment: is empty"),
        ("memory: 1MB\nmemory: 2MB", "occurs twice"),
    ],
)
def test_mistakes_are_told(tmp_path, text, told):
    with pytest.raises(ConfigErrors) as mistakes:
        read_target(write(tmp_path, text))
    assert told in str(mistakes.value) and "targets/phone.yaml" in str(mistakes.value)


def test_all_mistakes_of_all_files_are_told_together(tmp_path):
    write(tmp_path, "kernel: []\nmemory: much\n")
    write(tmp_path, "alignment: 3\n", "watch")
    write(tmp_path, "nonsense\n", ".hidden")
    assert [(each.file, each.line) for each in check_targets(tmp_path)] == [
        ("targets/phone.yaml", 1),
        ("targets/phone.yaml", 2),
        ("targets/watch.yaml", 1),
    ]


def test_a_file_that_is_elsewhere_or_huge_is_not_read(tmp_path):
    outside = tmp_path / "outside.yaml"
    outside.write_text("kernels: [portable]")
    root = tmp_path / "workspace"
    (root / "targets").mkdir(parents=True)
    (root / "targets" / "link.yaml").symlink_to(outside)
    (root / "targets" / "folder.yaml").mkdir()
    (root / "targets" / "huge.yaml").write_text("# " + "x" * (2 << 20))
    told = [str(each) for each in check_targets(root)]
    assert len(told) == 3 and all("cannot be read" in line for line in told)


def test_a_name_without_a_file_suggests_another(tmp_path):
    write(tmp_path, "kernels: [portable]")
    assert missing_target("phon", find_targets(tmp_path)) == (
        "no target 'phon': there is no targets/phon.yaml",
        "did you mean 'phone'? known: phone",
    )
    assert list(find_targets(tmp_path)) == ["phone"]


def test_what_is_written_of_a_runtime_is_read_again(tmp_path):
    facts = {
        "executorch": "1.4.1",
        "identifier": "ET12",
        "schema_version": 0,
        "backends": ["NoBackendThatIsKnown", "XnnpackBackend"],
        "operators": ["aten::add.out", "executorch_prim::add.Scalar", "team::scale.out"],
    }
    found = read_target(write(tmp_path, format_target(facts))).resolved()
    assert found["backends"] == ["XnnpackBackend"] and found["executorch"] == "1.4.1"
    assert [name for name, _ in found["operators"]] == facts["operators"]


def test_a_file_that_names_devices_alone_describes_no_runtime(tmp_path):
    assert describe_runtime(read_target(write(tmp_path, "devices: [native]\n"))) == {}
    runtime = describe_runtime(
        read_target(write(tmp_path, "devices: [native]\nkernels: [portable]\n"))
    )
    assert runtime["kernels"] == ["portable"] and "devices" not in runtime
