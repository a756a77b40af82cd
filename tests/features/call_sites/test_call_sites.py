"""Call sites from a manifest, in each language, and the methods that can't have any."""

import itertools

import pytest

from pipeline.features.call_sites import LANGUAGES
from pipeline.features.call_sites.names import camel, pascal, snake, unique
from pipeline.features.call_sites.verb import render, run
from pipeline.store.errors import PipelineError
from tests.support.bench import bench_of


def tensor(name, *sizes, dtype="float32", **more):
    return {"name": name, "dtype": dtype, "sizes": [*sizes], "order": [*range(len(sizes))], **more}


ROWS = {"size": "d0", "min": 2, "max": 64}
HALVES = {"size": ["Add", 1, ["FloorDiv", ["Add", -1, "d0"], 2]], "min": 0, "max": None}


def make_manifest(inputs=(), outputs=(), **more):
    signature = {
        "args": [["inputs", ["tuple", *inputs]]],
        "kwargs": [],
        "outputs": ["list", *outputs],
        "changes": [],
    }
    return {
        "package": "my-model",
        "emit": {},
        "constant_methods": {},
        "files": {"my-model.pte": {"digest": "0" * 64, "size": 1}},
        "methods": {"in": {"signature": signature}},
        **more,
    }


MANIFEST = make_manifest(
    [
        tensor("x", ROWS, 3),
        tensor("states[0]['y']", ROWS, dtype="int64"),
        {"name": "count", "int": {"size": "d1", "min": 0, "max": 9}},
        {"name": "flag", "value": True},
        {"name": "rest", "value": None},
        {"name": "scale", "float": (0.5).hex()},
    ],
    [tensor("output", HALVES, 3), {"name": "score", "scalar": "float"}],
    constant_methods={"get_len": 8, "get_mean": [0.5], "get_name": "n", "get_on": True},
)
LINES = {
    "cpp": [
        "namespace my_model {",
        "class MyModel {",
        "  // states_0_y: int64 [d0: 2 to 64]",
        "  Result<InOutputs> in(const TensorPtr& x, const TensorPtr& states_0_y, int64_t count) {",
        "    Tensor output; // float32 [0 or more, 3]",
        "    double score; // float",
        "    return InOutputs{outputs[0].toTensor(), outputs[1].toDouble()};",
        "  Result<std::string> get_name() {",
    ],
    "kotlin": [
        "package my_model",
        "    fun in_(x: Tensor, states0Y: Tensor, count: Long): InOutputs {",
        '        checkSize(count, longArrayOf(0L, 9L, 1L), "in: count", symbols)',
        "        return InOutputs(outputs[0].toTensor(), outputs[1].toDouble())",
        "    fun getOn(): Boolean =",
    ],
    "swift": [
        "  public func in_(x: Tensor<Float>, states0Y: Tensor<Int64>, count: Int) throws -> "
        "InOutputs {",
        "    let inputs: [ValueConvertible] = [x, states0Y, count, true, Value(), 0.5]",
        "    public let output: Tensor<Float>",
        "  public func getLen() throws -> Int {",
    ],
    "typescript": [
        "  in_(inputs: { x: Tensor; states0Y: Tensor; count: number }): "
        "{ output: Tensor; score: number } {",
        "    const outputs = [tensor('float32', "
        "[(1 + Math.floor((-1 + (symbols[0] ?? 0)) / 2)), 3])];",
        "        score: values[1] as number,",
        "  getName(): string {",
    ],
}


@pytest.mark.parametrize("language", LANGUAGES)
def test_methods_have_named_inputs_and_outputs(language):
    lines = [*render(MANIFEST, language)]
    assert "my-model" in lines[0] and "doit call-sites" in lines[0]
    assert [line for line in LINES[language] if line not in lines] == []
    assert "get_mean" not in "\n".join(lines)  # a list, which no language gets
    assert lines == [*render(MANIFEST, language)]


def test_inputs_that_a_method_changes_come_back_first():
    manifest = make_manifest([tensor("cache", 4)], [tensor("output", 2)])
    manifest["methods"]["in"]["signature"]["changes"] = [0]
    lines = [*render(manifest, "cpp", "app::models")]
    assert "namespace app::models {" in lines
    fields = [line.strip() for line in lines if line.strip().startswith("Tensor ")]
    assert fields == ["Tensor cache_changed; // float32 [4]", "Tensor output; // float32 [2]"]
    assert "    if (outputs.size() != 2) {" in lines


OTHERS = {"my-model.pte": {"digest": "0" * 64}, "w.ptd": {"digest": "1" * 64}}
REFUSED = [
    (
        make_manifest([tensor("x", 2, dtype="complex64")]),
        LANGUAGES,
        "in: x is complex64; known:",
    ),
    (
        make_manifest([{**tensor("x", 2, 3), "order": [1, 0]}]),
        LANGUAGES,
        r"in: x is float32 \[2, 3\], not contiguous, which no call site makes",
    ),
    (
        make_manifest([{"name": "mode", "value": "fast"}]),
        LANGUAGES,
        "in: mode is always 'fast', which no call site passes",
    ),
    (make_manifest(files=OTHERS), ("kotlin", "typescript"), r"loads no \.ptd file \(w\.ptd\)"),
    (
        make_manifest(emit={"memory_planning": {"share_mutable_buffers": True}}),
        ("kotlin", "swift", "typescript"),
        r"my-model in \w+: its library gives each method its own state; C\+\+ can share it",
    ),
    (
        make_manifest([], [tensor("y", {"size": None, "min": 0, "max": 9})]),
        ("typescript",),
        "the size of an output is computed in a way that only a call shows",
    ),
]


@pytest.mark.parametrize(("manifest", "languages", "line"), REFUSED)
def test_what_a_language_can_not_call(manifest, languages, line):
    for language in LANGUAGES:
        if language in languages:
            with pytest.raises(PipelineError, match=line):
                list(render(manifest, language))
        else:
            assert [*render(manifest, language)]


def test_identifiers():
    names = ["states[0]['Key']", "3d-points", "émil", "???", "get_len"]
    assert [snake(name) for name in names] == [
        *("states_0_key", "m3d_points", "mil", "value", "get_len"),
    ]
    assert camel("states[0]['Key']") == "states0Key"
    assert pascal("language_model-int8") == "LanguageModelInt8"
    assert unique(["class", "x", "x", "class", "x_2"], "class for") == [
        *("class_", "x", "x_", "class_2", "x_2"),
    ]
    letters = itertools.product("a_1", repeat=3)
    made = unique(("".join(word) for word in letters), "a_a")
    assert len({*made}) == 27 and "a_a" not in made


@pytest.mark.parametrize(
    ("words", "language", "line"),
    [
        (["vision"], "rust", "no language 'rust'; known: cpp, "),
        (["vision"], "", "name a language with --language; known: cpp, "),
        ([], "cpp", "name one package: doit call-sites vision --language cpp"),
        (["a", "b"], "swift", "name one package"),
    ],
)
def test_command_lines_that_make_no_sense(words, language, line):
    with pytest.raises(PipelineError, match=line):
        list(run(None, words, language))


def test_a_folder_is_not_replaced_by_call_sites(tmp_path):
    bench = bench_of("pair", tmp_path)
    assert bench.doit("call-sites", "pair", "--language", "cpp", "--out", "models") == 1
    assert bench.output == "call-sites: --out models: is a folder; name a file [PTE712]\n"
    assert (bench.root / "models" / "pair.py").is_file()
