import copy
import json
import pickle
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.config.yaml import load_nodes, plain
from pipeline.features.schemas.config_schema import json_schema
from pipeline.store.digest import canonical_json
from pipeline.store.errors import ConfigErrors, PipelineError
from tests.support.bench import REPOSITORY
from tests.support.configs import parse_config, read_configs

PORTABLE = "write `partitioners: []` for portable operators only"
XNNPACK_OPTIONS = "per_op_mode, config_precisions, configs, force_non_static_weights_for_f32_linear"
VALID = {
    "model": "seq2seq",
    "target": "android-arm64",
    "methods": {
        "encode": {"partitioners": ["xnnpack"]},
        "decode": {
            "quantize": {"quantizer": "xnnpack", "dynamic": True, "weight_qmin": -8},
            "partitioners": [
                {"xnnpack": {"per_op_mode": True, "config_precisions": ["fp32"]}},
                {"xnnpack": {"configs": ["AddConfig", "LinearConfig"]}},
            ],
        },
        "embed": {"partitioners": []},
    },
    "constant_methods": {"get_max_len": 128, "use_cache": True, "scales": [1, [0.5, ["x"]], False]},
    "emit": {"external_constants": True, "initialized_buffers": ["cache_pos"]},
    "validate": {"atol": 0.01, "gates": {"min_delegated_ops": 0.9, "max_size": "40MB"}},
}


def changed(path, value):
    """Return VALID with the value at a dotted path replaced, or removed if it is `...`."""
    document = copy.deepcopy(VALID)
    *way, last = path.split(".")
    place = document
    for key in way:
        place = place[int(key) if isinstance(place, list) else key]
    if value is ...:
        del place[last]
    else:
        place[int(last) if isinstance(place, list) else last] = value
    return document


def load_data(text):
    """Load the data of a YAML text."""
    content = text if isinstance(text, bytes) else text.encode()
    return plain(load_nodes(content, "p.yaml"))


def problems(data, package="seq2seq"):
    with pytest.raises(ConfigErrors) as caught:
        parse_config(package, data, "f.yaml")
    return str(caught.value).splitlines()


def test_a_config_becomes_models():
    config = parse_config("seq2seq-int8", VALID, "f.yaml")
    assert (config.package, config.model, config.target) == (
        "seq2seq-int8",
        "seq2seq",
        "android-arm64",
    )
    decode = config.methods["decode"]
    assert [spec.name for spec in decode.partitioners] == ["xnnpack", "xnnpack"]
    assert decode.partitioners[0].options.per_op_mode is True
    assert decode.partitioners[1].options.configs == ("AddConfig", "LinearConfig")
    assert decode.quantize.quantizer == "xnnpack"
    assert decode.quantize.dynamic is True
    assert config.methods["embed"].partitioners == ()
    assert config.validation.gates.max_size == 40_000_000
    assert config.constant_methods == VALID["constant_methods"]
    assert pickle.loads(pickle.dumps(config)) == config


def test_resolved_fills_in_every_default():
    minimal = {"model": "m", "methods": {"f": {"partitioners": ["xnnpack"]}}}
    resolved = parse_config("p", minimal, "f.yaml").resolved()
    # Keys that features add, gates included, are unset by default: new ones change no test here.
    assert {*resolved["validate"].pop("gates").values()} == {None}
    for key in ("family", "publish", "toolchain"):
        assert resolved[key] is None
    resolved = {key: value for key, value in resolved.items() if value is not None}
    assert resolved == {
        "package": "p",
        "model": "m",
        "export": {},
        "operators": [],
        "methods": {
            "f": {
                "partitioners": [
                    {
                        "name": "xnnpack",
                        "options": {
                            "per_op_mode": False,
                            "config_precisions": None,
                            "configs": None,
                            "force_non_static_weights_for_f32_linear": False,
                        },
                        "modules": None,
                    }
                ],
                "modules": None,
                "edge": {
                    "check_ir_validity": True,
                    "skip_dim_order": False,
                    "preserve_ops": None,
                    "core_aten_ops_exceptions": None,
                    "keep_ranges": False,
                    "passes": [],
                    "passes_after_delegation": [],
                },
                "quantize": None,
                "emit": {
                    "memory_planning": None,
                    "sym_shape_eval": None,
                    "propagate_device": None,
                },
                "allow_none": False,
            }
        },
        "omitted": [],
        "constant_methods": {},
        "emit": {
            "external_weights": {},
            "external_constants": False,
            "external_files": {},
            "initialized_buffers": [],
            "passes": [],
            "memory_planning": {
                "algorithm": ["greedy"],
                "alignment": 16,
                "allow_lifetime_and_storage_overlap": False,
                "alloc_graph_input": True,
                "alloc_graph_output": True,
                "alloc_mutable_buffers": True,
                "share_mutable_buffers": False,
            },
            "remove_view_copy": True,
            "do_quant_fusion_and_const_prop": False,
            "run_reinplace_pass": False,
            "reinplace_extra_ops": None,
            "sym_shape_eval": "constraint_based",
            "propagate_device": {
                "skip_h2d_for_method_inputs": False,
                "skip_d2h_for_method_outputs": False,
            },
            "enable_non_cpu_memory_planning": True,
            "emit_mutable_buffer_names": False,
            "external_mutable_weights": False,
            "ignore_to_out_var_failure": False,
            "emit_stacktrace": False,
            "etrecord": False,
            "metadata": False,
            "metadata_revision": False,
            "layout": {
                "extract_delegate_segments": True,
                "segment_alignment": 128,
                "constant_tensor_alignment": None,
                "delegate_alignment": None,
            },
        },
        "validate": {
            "atol": None,
            "rtol": None,
            "max_mean_abs": None,
            "max_p999_abs": None,
            "max_relative": None,
            "min_sqnr": None,
            "min_cosine": None,
            "min_agreement": None,
            "inputs": 3,
            "seed": 0,
            "steps": 4,
            "reference": {
                "atol": None,
                "rtol": None,
                "max_mean_abs": None,
                "max_p999_abs": None,
                "max_relative": None,
                "min_sqnr": None,
                "min_cosine": None,
                "min_agreement": None,
            },
            "methods": {},
            "random": False,
            "allow": [],
            "bundle": False,
            "bundle_limit": 32 * 2**20,
            "latency": {"seconds": 0.3},
            "devices": [],
            "device_calls": None,
            "device_repeats": None,
            "device_warm_up": 2,
            "device_pause": 0.0,
        },
    }


def test_a_quantizers_options_are_resolved():
    decode = parse_config("p", VALID, "f.yaml").methods["decode"].resolved()
    assert decode["quantize"] == {
        "quantizer": "xnnpack",
        "dynamic": True,
        "per_channel": True,
        "weight_qmin": -8,
        "weight_qmax": 127,
        "act_qmin": -128,
        "act_qmax": 127,
        "batches": None,
        "modules": {},
        "operators": {},
    }


NAME_RULE = "letters, digits, '_', '-' and single dots inside"
MISTAKES = [
    ("modle", 1, "unknown key 'modle'; did you mean 'model'? known: model, export, target, "
     "file, methods, operators, constant_methods, emit, validate, "),
    ("model", ..., "model: is missing; name one of models/"),
    ("model", None, "model: is empty; name one of models/"),
    ("model", 5, "model: is 5, must be a string; quote it"),
    *(("model", name, f"model: is {name!r}, must be {NAME_RULE}")
      for name in ("", "..", "a..b", "../x", "a/b", "a\\b", ".hidden", "-x", "a\nb", "a\0", "é")),
    ("target", True, "target: is true, must be a string; quote it"),
    ("target", "a\x1b", "target: is 'a\\x1b', must be a string, not empty, without control"),
    ("publish", {"license": "MIT"}, "publish: unknown key 'license'; did you mean 'licence'?"),
    ("family", ["chat"], "family: is a list, must be a mapping; write its name, or {name: <name>}"),
    ("family", "a/b", f"family.name: is 'a/b', must be {NAME_RULE}"),
    ("family", {"share": True}, "family.name: is missing"),
    ("family", {"name": "chat", "share": False}, "family: must share something; without `family`"),
    ("family", {"name": "chat", "share": "base"}, "family.share: is 'base', must be true, a list"),
    ("methods", ..., "methods: is missing; name every method of the model"),
    ("methods", {}, "methods: is an empty mapping, must name at least one"),
    ("methods", ["encode"], "methods: is a list, must be a mapping"),
    ("methods.encode", None, f"methods.encode: is empty, must be a mapping; {PORTABLE}"),
    ("methods.encode.partitioners", "a\nb",
     f"methods.encode.partitioners: is 'a\\nb', must be a list; {PORTABLE}"),
    ("methods.encode", ["xnnpack"], "methods.encode: is a list, must be a mapping; "),
    ("methods.de code", {"partitioners": []},
     f"methods.'de code': is 'de code', must be {NAME_RULE}"),
    ("methods.encode.partitoners", [], "methods.encode: unknown key 'partitoners'; did you mean "
     "'partitioners'? known: partitioners, modules, edge, quantize, emit, allow_none, recipe"),
    ("partitioners", [],
     "unknown key 'partitioners'; it belongs to methods.<method>; known: model"),
    ("methods.encode.of", "decode", "methods.encode: unknown key 'of'; sizes and their bounds "
     "belong in the exporter: it can make a method for each value of `export: {lengths: "),
    ("methods.encode.dynamic", {}, "methods.encode: unknown key 'dynamic'; sizes and their bounds"),
    ("validate.max_size", 1, "validate: unknown key 'max_size'; it belongs to validate.gates; "),
    ("methods.encode.target", "x", "methods.encode: unknown key 'target'; it belongs to the pack"),
    ("methods.encode.partitioners", ..., f"methods.encode.partitioners: is missing; {PORTABLE}"),
    ("methods.encode.partitioners", None, f"methods.encode.partitioners: is empty; {PORTABLE}"),
    ("methods.encode.partitioners", "xnnpack",
     "methods.encode.partitioners: is 'xnnpack', must be a list; write [xnnpack]"),
    ("methods.encode.partitioners", {"xnnpack": {}},
     "methods.encode.partitioners: is a mapping, must be a list; write `[xnnpack: {}]`, with its "
     "options in the braces"),
    ("methods.encode.partitioners.0", "xnnpak", "methods.encode.partitioners[0]: unknown "
     "partitioner 'xnnpak'; did you mean 'xnnpack'? known: xnnpack"),
    ("methods.encode.partitioners.0", {"xnnpack": None, "per_op_mode": True},
     "methods.encode.partitioners[0]: is a mapping, must be a name or one `name: {options}`"),
    ("methods.encode.partitioners.0", 7,
     "methods.encode.partitioners[0]: is 7, must be a name or one `name: {options}`; known: xnn"),
    ("methods.encode.partitioners.0", {"xnnpack": None},
     "methods.encode.partitioners[0].xnnpack: is empty, must be a mapping"),
    ("methods.decode.partitioners.0.xnnpack.per_op_mode", "yes please",
     "methods.decode.partitioners[0].xnnpack.per_op_mode: is 'yes please', must be true or false"),
    ("methods.decode.partitioners.0.xnnpack.per_op", True, "methods.decode.partitioners[0].xnnpack:"
     f" unknown key 'per_op'; did you mean 'per_op_mode'? known: {XNNPACK_OPTIONS}"),
    ("methods.decode.partitioners.0.xnnpack.config_precisions", "fp32",
     "methods.decode.partitioners[0].xnnpack.config_precisions: is 'fp32', must be a list"),
    ("methods.decode.partitioners.0.xnnpack.config_precisions.0", "fp23",
     "methods.decode.partitioners[0].xnnpack.config_precisions[0]: is 'fp23', must be one of "
     "the known values; did you mean 'fp32'? known: fp32, static_quant, dynamic_quant"),
    ("methods.decode.partitioners.1.xnnpack.configs", [],
     "methods.decode.partitioners[1].xnnpack.configs: is an empty list, must name at least one"),
    ("methods.decode.partitioners.1.xnnpack.configs.1", "AddConfig",
     "methods.decode.partitioners[1].xnnpack.configs: is a list, must not contain duplicates"),
    ("methods.decode.quantize", "xnnpack",
     "methods.decode.quantize: is 'xnnpack', must be a mapping; write {quantizer: <name>}"),
    ("methods.decode.quantize", {}, "methods.decode.quantize.quantizer: is missing; known: xnnp"),
    ("methods.decode.quantize", None, "methods.decode.quantize: is empty; give it a value or "),
    ("methods.decode.quantize.quantizer", "xnnpck", "methods.decode.quantize.quantizer: unknown "
     "quantizer 'xnnpck'; did you mean 'xnnpack'? known: xnnpack"),
    ("methods.decode.quantize.weight_qmin", -129,
     "methods.decode.quantize.weight_qmin: is -129, must be at least -128"),
    ("constant_methods", [1], "constant_methods: is a list, must be a mapping"),
    ("constant_methods.encode", 1, "constant_methods.encode: is also a method of the model; "
    "rename"),
    ("constant_methods.a b", 1, f"constant_methods.'a b': is 'a b', must be {NAME_RULE}"),
    ("constant_methods.x", None, "constant_methods.x: is empty, must be a number, string, true,"),
    ("constant_methods.x", [[None]], "constant_methods.x: is a list, must be a number, string"),
    ("constant_methods.x", {"a": 1}, "constant_methods.x: is a mapping, must be a number, string"),
    ("constant_methods.x", 2**63, f"constant_methods.x: is {2**63}, must be a number of at most"),
    ("constant_methods.x", float("inf"), "constant_methods.x: is inf, must be a finite number"),
    ("constant_methods.x", "a\0b", "constant_methods.x: is 'a\\x00b', must be a string without"),
    ("emit", None, "emit: is empty; give it a value or leave it out"),
    ("emit.external_weights", "decoder", "emit.external_weights: is 'decoder', must be true,"),
    ("emit.external_weights", [""], "emit.external_weights.weights[0]: is '', must be a string"),
    ("emit.external_constants", 1, "emit.external_constants: is 1, must be true or false"),
    ("emit.initialized_buffers", [""], "emit.initialized_buffers[0]: is '', must be a string, not"),
    ("validate.atol", -1e-3, "validate.atol: is -0.001, must be at least 0"),
    ("validate.rtol", float("nan"), "validate.rtol: is nan, must be a finite number"),
    ("validate.rtol", True, "validate.rtol: is true, must be a number"),
    ("validate.min_sqnr", "20", "validate.min_sqnr: is '20', must be a number"),
    ("validate.min_cosine", 2, "validate.min_cosine: is 2, must be at most 1"),
    ("validate.max_p999_abs", -1, "validate.max_p999_abs: is -1, must be at least 0"),
    ("validate.methods", [], "validate.methods: is an empty list, must be a mapping"),
    ("validate.methods", {"encod": {"atol": 1.0}},
     "validate.methods.encod: is not a method of this package; did you mean 'encode'?"),
    ("validate.methods", {"encode": {"atol": -1.0}},
     "validate.methods.encode.atol: is -1.0, must be at least 0"),
    ("validate.methods", {"encode": {"steps": 2}},
     "validate.methods.encode: unknown key 'steps'"),
    ("validate.inputs", 2.5, "validate.inputs: is 2.5, must be a whole number"),
    ("validate.steps", 0, "validate.steps: is 0, must be at least 1"),
    ("validate.seed", -1, "validate.seed: is -1, must be at least 0"),
    ("validate.gates.min_delegated_ops", 90,
     "validate.gates.min_delegated_ops: is 90, must be at most 1; write 90% or 0.9"),
    ("validate.gates.min_delegated_nodes", float("nan"),
     "validate.gates.min_delegated_nodes: is nan, must be a finite number"),
    *(("validate.gates.max_size", size, "validate.gates.max_size: is ")
      for size in ("40 megs", "40mb", "-1MB", "0MB", 0, -5, 1.5, True, "", "MB", [1], "1e3MB")),
    ("validate.gates.max_sise", 1, "validate.gates: unknown key 'max_sise'; did you mean 'max_s"),
]  # fmt: skip


@pytest.mark.parametrize(("path", "value", "reported"), MISTAKES)
def test_a_mistake_is_reported_by_its_path(path, value, reported):
    (problem,) = problems(changed(path, value))
    assert problem.startswith(f"f.yaml: {reported}")


@pytest.mark.parametrize(
    ("size", "count"),
    [
        ("40MB", 40_000_000),
        ("512KiB", 524_288),
        ("1.5 GB", 1_500_000_000),
        ("10B", 10),
        ("3kB", 3000),
        ("3KB", 3000),
        (7, 7),
    ],
)
def test_sizes(size, count):
    config = parse_config("p", changed("validate.gates.max_size", size), "f.yaml")
    assert config.validation.gates.max_size == count


@pytest.mark.parametrize("data", [None, [], "text", 3])
def test_what_is_no_mapping_is_reported(data):
    (problem,) = problems(data)
    assert problem.endswith("must be a mapping; begin with `model:`")


@pytest.mark.parametrize("package", ["", "a b", "..", "../a", ".a", "a/b", "a\n", "a\0", "a..b"])
def test_a_file_must_be_able_to_name_a_package(package):
    (problem,) = problems(VALID, package=package)
    assert problem.startswith("f.yaml: cannot name a package: ")
    assert problem.endswith("; rename the file")


@pytest.mark.parametrize("key", [1, True, None, 2.5, "on e"])
def test_keys_that_are_no_names_are_reported(key):
    document = {**VALID, key: 1, "methods": {**VALID["methods"], key: {"partitioners": []}}}
    method, top = sorted(problems(document))
    assert top.startswith("f.yaml: unknown key ")
    assert method.startswith("f.yaml: methods")
    assert ", must be a string" in method or ", must be letters, digits, " in method


def test_all_mistakes_are_reported_at_once():
    document = changed("methods.decode.partitioners.0.xnnpack.per_op_mode", "yes")
    document["modle"] = document.pop("model")
    document["methods"]["encode"] = None
    document["validate"]["atol"] = -1
    paths = [line.split(": ")[1] for line in problems(document)]
    assert paths == [
        "unknown key 'modle'; did you mean 'model'? known",
        "methods.decode.partitioners[0].xnnpack.per_op_mode",
        "methods.encode",
        "model",
        "validate.atol",
    ]


def test_mistakes_inside_hide_none_of_the_whole_nor_of_a_key():
    own = {"quantizer": "xnnpack", "dynamic": True, "batches": 3, "modules": {"a": {"dynamc": 1}}}
    whole, inside = problems(changed("methods.encode.quantize", own))
    assert "quantize: must not contain `batches`" in whole
    assert "quantize.modules.a: unknown key 'dynamc'" in inside
    own = {"quantizer": "xnnpack", "operators": {"on e": 5}}
    key, value = problems(changed("methods.encode.quantize", own))
    assert ": is 'on e', must be one of the known values" in key
    assert ": is 5, must be a mapping of options" in value


def test_a_missing_quantizer_hides_no_option_that_is_wrong_for_all():
    own = {"dynamic": True, "per_channel": False, "modules": {"a": {"dynamc": 1}}}
    inside, missing = problems(changed("methods.encode.quantize", own))
    assert "quantize.quantizer: is missing; known: " in missing
    assert "quantize.modules.a: unknown key 'dynamc'; did you mean 'dynamic'?" in inside
    (missing,) = problems(changed("methods.encode.quantize", {"dynamic": True}))


def test_a_config_without_methods_is_reported_once():
    assert len(problems(changed("methods", ...))) == 1


def test_a_constant_method_may_not_be_a_method():
    lines = problems({**VALID, "constant_methods": {"embed": 1}})
    assert lines == ["f.yaml: constant_methods.embed: is also a method of the model; rename it"]


@pytest.mark.parametrize(("value", "shown"), [("x" * 90, "x..."), (10**40, "an enormous number")])
def test_what_is_shown_of_a_value_is_short(value, shown):
    (line,) = problems(changed("emit.external_constants", value))
    assert shown in line
    assert len(line) < 130


# Files


@pytest.mark.parametrize(
    ("content", "reported"),
    [
        (b"", " is empty, must be a mapping; begin with `model:`"),
        (b"# nothing\n", " is empty, must be a mapping; begin with `model:`"),
        (b"- model\n", " is a list, must be a mapping; begin with `model:`"),
        (b"model: a\nmodel: b\n", "2: 'model' occurs twice, first in line 1"),
        (b"{model: a, model: b}", "1: 'model' occurs twice, first in line 1"),
        (b"methods:\n  f: {}\n  f: {}\n", "3: methods: 'f' occurs twice, first in line 2"),
        (b"model: a: b\n", "1: is not valid YAML: mapping values are not allowed"),
        (b"model: a\nmethods\n  f: {}\n", "2: 'methods' lacks a colon; write `key: value`, with"),
        (b"m:\n  f\n\n    p: []\n", "2: 'f' lacks a colon; write `key: value`, with the"),
        (b"model:a\nmethods: {}\n", "1: 'model:a' lacks a colon; write `key: value`, with the"),
        (b"f:\n  g: {}\n  h\nv: {}\n", "3: 'h' lacks a colon; write `key: value`, with"),
        (b"a: 1\nb:\xc2\xa0c\nd: 2\n", "2: contains a no-break space; replace it with an ord"),
        (b"a:\n  b: 1\n c: 2\n", "3: is indented differently from the lines above it; align"),
        (b"a:\n  - 1\n - 2\n", "3: is indented differently from the lines above it; align"),
        (b"a: [1] x\n", "1: is not valid YAML: while parsing a block mapping, did not find"),
        (
            b"a:\n  <<<<<<< HEAD\n<<<<<<< HEAD\n  b: 1\n=======\n  b: 2\n>>>>>>> main\n",
            "3: contains a merge conflict; keep the right lines, and remove the markers <<<<<<<, "
            "======= and >>>>>>>",
        ),
        (b"a: 'x\nb: 1\n", "1: has a quote that is not closed; close it, or remove it"),
        (b"f: g\n  h: i\n", "2: is not valid YAML: mapping values are not allowed"),
        (b"model: [a\n", "2: is not valid YAML: "),
        (b"a: 1\n---\nb: 2\n", "2: is not valid YAML: expected a single document"),
        (b"a: *x\n", "1: is not valid YAML: found undefined alias"),
        (b"model: m\ntarget: \xff\n", "2: is not UTF-8 text; save the file as UTF-8"),
        (b"model: m\ntarget: a\x07\n", "2: contains the character #x0007"),
        (b"f: on\n", "1: f: `on` has different meanings in YAML 1.1 and 1.2; write true or"),
        (b"off: 1\n", "1: `off` has different meanings in YAML 1.1 and 1.2"),
        (b"f: 010\n", "1: f: `010` has different meanings in YAML 1.1 and 1.2; write a dec"),
        (b"f:\n- [1_000, 2]\n", "2: f[0][0]: `1_000` has different meanings in YAML 1.1"),
        (b"f: 1:30\n", "1: f: `1:30` has different meanings in YAML 1.1"),
        (b"f: !!int x\n", "1: f: has the tag '!!int'; leave the tag out"),
        (b"f: !!python/name:os.x\n", "1: f: has the tag '!!python/name:os.x'; leave"),
        (b"f: !!set {a}\n", "1: f: has the tag '!!set'; leave the tag out"),
        (b"[a]: 1\n", "1: has a key that is not a string"),
        (b"f: 1\n<<: [a]\n", "2: `<<` must be a mapping or a list of mappings"),
        (b"model: m\nf: &f [*f]\n", "2: f[0]: holds itself"),
        (b"f: &f\n  <<: *f\n", "1: f: holds itself"),
        (b"f:\n  g: " + b"9" * 5000, "2: is not valid YAML: a number of more than 100"),
        (b"[" * 100_000, "1: is nested more than 64 levels deep"),
        (
            b"\n".join(
                b"a%d: &a%d [*a%d]" % (n, n, n - 1) if n else b"a0: &a0 []" for n in range(99)
            ),
            "65: is nested more than 64 levels deep",
        ),
    ],
)
def test_what_is_wrong_with_a_file(tmp_path, content, reported):
    (tmp_path / "p.yaml").write_bytes(content)
    (problem,) = read_configs(tmp_path).problems["p"]
    assert str(problem).startswith(f"{tmp_path.name}/p.yaml:{reported}")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-4", 1e-4),
        ("2024-01-01", "2024-01-01"),
        ("'on'", "on"),
        ("'010'", "010"),
        ("!!str 7", "7"),
        ("0x1F", 31),
        ("-0", 0),
        (".inf", float("inf")),
        ("~", None),
        ("y", "y"),
        ("", None),
    ],
)
def test_scalars_are_those_of_yaml_1_2(text, value):
    assert load_data(f"key: {text}\n") == {"key": value}


def test_anchors_and_merge_keys_are_fine():
    data = load_data(
        "\ufeffmodel: m\nmethods:\n  f: &f\n    partitioners: [xnnpack]\n  g: *f\n"
        "  h:\n    <<: *f\n    partitioners: []\n"
    )
    config = parse_config("p", data, "f.yaml")
    assert config.methods["g"] == config.methods["f"]
    assert config.methods["h"].partitioners == ()


MERGED = {"f": {"x": 1}, "g": {"x": 2, "y": 3}}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("{<<: *f, z: 0}", {"x": 1, "z": 0}),
        ("{z: 0, <<: *f}", {"x": 1, "z": 0}),
        ("{x: 0, <<: *g}", {"x": 0, "y": 3}),
        ("{<<: [*f, *g]}", {"x": 1, "y": 3}),
        ("{<<: [*g, *f]}", {"x": 2, "y": 3}),
    ],
)
def test_merge_keys_are_those_of_pyyaml(text, value):
    whole = f"f: &f {{x: 1}}\ng: &g {{x: 2, y: 3}}\nh: {text}\n"
    assert load_data(whole) == yaml.safe_load(whole) == {**MERGED, "h": value}


def test_aliases_of_aliases_are_refused_in_no_time():
    """2**60 leaves; merging makes none of them."""
    lines = ["a0: &a0 [x, x]"]
    lines += [f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]" for n in range(1, 60)]
    with pytest.raises(ConfigErrors, match=r"p\.yaml:\d+: expands to more than 20,000 values"):
        load_data("\n".join(lines))
    lines = ["m0: &m0 {x: 1}"]
    lines += [f"m{n}: &m{n} {{<<: [*m{n - 1}, *m{n - 1}]}}" for n in range(1, 60)]
    assert load_data("\n".join(lines))["m59"] == {"x": 1}


def test_of_thousands_of_mistakes_the_first_are_reported(tmp_path):
    (tmp_path / "p.yaml").write_text(
        json.dumps({**VALID, "methods": {"f": {"partitioners": [1] * 5000}}})
    )
    first, *problems = read_configs(tmp_path).problems["p"]
    assert len(problems) == 100 and str(first) == f"{tmp_path.name}/p.yaml: has 4,900 more mistakes"


def test_a_name_of_two_lines_is_reported_on_one(tmp_path):
    (tmp_path / "a\nb.yaml").write_text(json.dumps(VALID))
    (problem,) = read_configs(tmp_path).problems["a\\nb"]
    assert len(str(problem).splitlines()) == 1


@pytest.mark.parametrize("make", [Path.mkdir, lambda path: path.symlink_to("nowhere")])
def test_a_file_that_cannot_be_read_is_reported(tmp_path, make):
    make(tmp_path / "p.yaml")
    problems = read_configs(tmp_path).problems["p"]
    assert [problem.what.split(":")[0] for problem in problems] == ["cannot be read"]


def test_a_bad_config_spoils_no_other(tmp_path):
    for name in ("b.yaml", "a.yml", "twice.yaml", "twice.yml"):
        (tmp_path / name).write_text(json.dumps(VALID))
    (tmp_path / "c.yaml").write_text("model: [")
    (tmp_path / "d.yaml").write_text("model: m\nmethods: {f: {}}\nemitt: {}\n")
    (tmp_path / ".#lock.yaml").write_text("an editor's")
    (tmp_path / "schema.json").write_text("{}")
    found = read_configs(tmp_path)
    assert list(found.configs) == list(found.documents) == ["a", "b"]
    assert found.documents["a"].data == VALID
    assert {package: len(reported) for package, reported in found.problems.items()} == {
        "c": 1,
        "d": 2,
        "twice": 1,
    }
    assert sorted(found.packages) == ["a", "b", "c", "d", "twice"]
    (twice,) = found.problems["twice"]
    assert str(twice).endswith(
        f"twice.yml: makes the package 'twice', as {tmp_path.name}/twice.yaml does; keep one"
    )


def test_a_folder_is_not_needed_but_must_be_one(tmp_path):
    assert read_configs(tmp_path / "none").configs == {}
    (tmp_path / "file").write_text("")
    with pytest.raises(PipelineError, match="file: cannot be read: Not a directory"):
        read_configs(tmp_path / "file")


def test_the_configs_of_this_repository_are_good():
    found = read_configs(REPOSITORY / "partition_configs")
    assert found.configs
    assert not found.problems


def test_torch_is_not_imported():
    code = "import sys, pipeline.features.schemas.config_schema; print('torch' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "False"


# Properties

NAMES = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,8}", fullmatch=True)
SCALARS = (
    st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=8)
)
OPTIONS = st.fixed_dictionaries(
    {},
    optional={
        "per_op_mode": st.booleans(),
        "force_non_static_weights_for_f32_linear": st.booleans(),
        "configs": st.sampled_from([["AddConfig"], ["MulConfig", "AddConfig"]]),
        "config_precisions": st.sampled_from([["fp32"], ["dynamic_quant", "fp32"]]),
    },
)
METHODS = st.fixed_dictionaries(
    {"partitioners": st.lists(st.just("xnnpack") | OPTIONS.map(lambda o: {"xnnpack": o}))},
    optional={
        "quantize": st.fixed_dictionaries(
            {"quantizer": st.just("xnnpack")},
            optional={"dynamic": st.booleans(), "weight_qmax": st.integers(1, 127)},
        )
    },
)
DOCUMENTS = st.fixed_dictionaries(
    {"model": NAMES, "methods": st.dictionaries(NAMES, METHODS, min_size=1, max_size=3)},
    optional={
        "target": NAMES,
        "constant_methods": st.dictionaries(
            NAMES.map(lambda name: f"get_{name}"), SCALARS | st.lists(SCALARS, max_size=3)
        ),
        "emit": st.fixed_dictionaries({}, optional={"external_constants": st.booleans()}),
        "validate": st.fixed_dictionaries(
            {}, optional={"atol": st.floats(0, 1), "inputs": st.integers(0, 9)}
        ),
    },
).filter(lambda d: not d["methods"].keys() & d.get("constant_methods", {}).keys())
JUNK = st.recursive(
    st.none() | SCALARS | st.floats() | st.integers() | st.text() | st.binary() | st.dates(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.none() | SCALARS | NAMES, inner, max_size=3)
        | st.sampled_from([{"xnnpack": {}}, ["xnnpack"], {"quantizer": "xnnpack"}])
    ),
    max_leaves=5,
)


def resolved(document):
    return canonical_json(parse_config("p", document, "f.yaml").resolved())


def shuffled(value, random):
    if isinstance(value, list):
        return [shuffled(item, random) for item in value]
    if not isinstance(value, dict):
        return value
    keys = list(value)
    random.shuffle(keys)
    return {key: shuffled(value[key], random) for key in keys}


@given(DOCUMENTS, st.randoms(use_true_random=False))
def test_resolved_does_not_depend_on_the_order_of_keys(document, random):
    assert resolved(shuffled(document, random)) == resolved(document)
    config = parse_config("p", shuffled(document, random), "f.yaml")
    assert list(config.resolved()["methods"]) == sorted(document["methods"])


@given(DOCUMENTS)
def test_a_document_survives_its_file(tmp_path_factory, document):
    path = tmp_path_factory.mktemp("configs") / "p.yaml"
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    try:
        data = load_data(path.read_bytes())
    except ConfigErrors as errors:  # texts that PyYAML doesn't quote, following YAML 1.1
        assert all("different meanings in YAML 1.1" in problem.what for problem in errors.problems)
    else:
        assert resolved(data) == resolved(document)


YAML = yaml.safe_dump(VALID).encode()
SNIPPETS = st.binary(max_size=4) | st.sampled_from(
    [
        b"[",
        b"{",
        b"&a ",
        b"*a",
        b"!!set ",
        b"!%0A ",
        b"<<: ",
        b"? ",
        b": ",
        b"- ",
        b"|\n",
        b"yes",
        b"'",
    ]
)


@given(st.integers(0, len(YAML)), st.integers(0, 8), SNIPPETS)
@settings(max_examples=120)
def test_a_mutated_file_parses_or_has_problems(tmp_path_factory, start, length, snippet):
    folder = tmp_path_factory.mktemp("configs")
    (folder / "p.yaml").write_bytes(YAML[:start] + snippet + YAML[start + length :])
    found = read_configs(folder)
    assert found.configs.keys() | found.problems.keys() == {"p"}
    for problem in found.problems.get("p", ()):
        assert len(str(problem).splitlines()) == 1


def places(value):
    """Yield every container of a document with each of its keys and a key that it lacks."""
    if isinstance(value, dict | list):
        keys = list(value) if isinstance(value, dict) else list(range(len(value)))
        yield from ((value, key) for key in keys)
        for key in keys:
            yield from places(value[key])
        if isinstance(value, dict):
            yield value, "extra"


@given(DOCUMENTS, st.data())
@settings(max_examples=120)
def test_a_mutated_document_parses_or_gives_config_errors(document, data):
    document = copy.deepcopy(document)  # strategies return the same lists again
    container, key = data.draw(st.sampled_from(list(places(document))))
    container[key] = data.draw(JUNK)
    try:
        config = parse_config("p", document, "f.yaml")
    except ConfigErrors as errors:
        assert errors.problems
        for line in str(errors).splitlines():
            assert line.startswith("f.yaml: ")
            assert not any(
                word in line for word in ("Input should", "pydantic", "not allowed here")
            )
    else:
        canonical_json(config.resolved())
        jsonschema.validate(document, json_schema())
