"""Core ML, MPS and MLX as catalogue entries, lowered through doit; only a Mac can run them."""

import inspect
import json
import re
import sys
from contextlib import suppress
from pathlib import Path
from typing import get_args

import coremltools as ct
import executorch
import pytest
import torch
from coremltools.optimize.coreml import OpLinearQuantizerConfig
from coremltools.optimize.torch.quantization import ModuleLinearQuantizerConfig
from executorch.backends.apple.coreml import executorchcoreml
from executorch.backends.apple.coreml.compiler import CoreMLBackend, coreml_preprocess
from executorch.backends.apple.coreml.compiler.coreml_preprocess import (
    MULTIMETHOD_WEIGHT_SHARING_STRATEGY,
)
from executorch.backends.apple.coreml.partition import CoreMLPartitioner
from executorch.backends.apple.coreml.quantizer import _coreml_quantizer_utils
from executorch.exir._serialize._program import deserialize_pte_binary
from pydantic import ValidationError

from pipeline.backends import BACKENDS, PartitionerSpec, make_partitioners, make_quantizer
from pipeline.backends.options import NAMES
from pipeline.features.coreml.options import (
    CoreMLComputeUnit,
    CoreMLOptions,
    CoreMLQuantize,
    CoreMLWeightQuantizer,
)
from pipeline.features.coreml.reproducible import archive, reproducible
from pipeline.store.errors import PipelineError
from tests.support.lowerable import (
    bench_for,
    both,
    check_delegated,
    check_fresh_checkout_hits,
    check_not_run,
    check_same_bytes,
    manifest_of,
)
from tests.support.refused import left_by

pytestmark = pytest.mark.slow

APART = {"multimethod_weight_sharing_strategy": "disabled"}
COREML = {
    "fp16": both(partitioners=["coreml"]),
    "apart": both(
        partitioners=[
            {
                "coreml": {
                    **APART,
                    "compute_precision": "float32",
                    "compute_unit": "cpu_and_gpu",
                    "minimum_deployment_target": "ios18",
                }
            }
        ]
    ),
}
MIXED = {
    "mixed": {
        "methods": {
            "classify": {"partitioners": ["coreml"]},
            "features": {"partitioners": ["xnnpack"]},
        }
    },
    "reversed": {
        "methods": {
            "classify": {"partitioners": ["coreml"]},
            "features": {"partitioners": ["coreml"]},
        }
    },
    "turns": {  # Core ML sees the methods one after the other
        "methods": {
            "classify": {"partitioners": ["coreml"]},
            "features": {"partitioners": ["xnnpack", "coreml"]},
        }
    },
}
QUANTIZED = {
    "weights8": {
        "methods": {
            "features": {"partitioners": []},
            "classify": {
                "partitioners": [{"coreml": {"minimum_deployment_target": "ios17"}}],
                "quantize": {"quantizer": "coreml", "activation_dtype": "float32"},
            },
        }
    },
    "precisions": {
        "methods": {
            "features": {"partitioners": []},
            "classify": {
                "partitioners": [{"coreml": {"minimum_deployment_target": "ios17"}}],
                "quantize": {
                    "quantizer": "coreml",
                    "modules": {"trunk.first": "none"},
                    "operators": {"linear": {"activation_dtype": "float32"}},
                },
            },
        }
    },
}
OTHERS = {
    "mps": both(partitioners=[{"mps": {"use_fp16": False}}]),
    "mlx": both(partitioners=["mlx"]),
}
IDS = {"mps": "MPSBackend", "mlx": "MLXBackend"}


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    bench = bench_for(
        tmp_path_factory.mktemp("apple") / "workspace", COREML | MIXED | QUANTIZED | OTHERS
    )
    temporary = bench.root / "temporary"
    temporary.mkdir()
    assert bench.doit(timeout=900, TMPDIR=str(temporary)) == 0, bench.output
    return bench


@pytest.mark.parametrize("package", [*COREML, *OTHERS])
def test_everything_is_delegated(bench, package):
    check_delegated(bench, package, IDS.get(package, "CoreMLBackend"), 0.9)


def test_packages_of_coremltools_are_removed_with_their_action(bench):
    assert list((bench.root / "temporary").rglob("*.mlpackage")) == []


def test_quantized_weights_are_delegated(bench):
    """The whole method is one partition, so every dequantization is inside the model."""
    counts = counts_of(bench, "weights8")
    assert counts["partitions"] == {"CoreMLBackend": 1}
    assert counts["delegated_nodes"] == counts["nodes"]
    assert counts["delegated_operators"] > counts_of(bench, "fp16")["delegated_operators"]


def counts_of(bench, package):
    return manifest_of(bench, package)["methods"]["classify"]["delegation"]


@pytest.mark.parametrize(
    ("package", "why"),
    [("fp16", "only Apple"), ("mps", "no MPS"), ("mlx", "no MLX delegate")],
)
def test_it_is_not_run_here(bench, package, why):
    check_not_run(bench, package, why)


def test_a_mac_runs_what_its_wheel_has(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    assert "cannot_run" not in BACKENDS["coreml"].machine
    assert "cannot_run" not in BACKENDS["mlx"].machine
    assert "no MPS" in BACKENDS["mps"].machine["cannot_run"]


def test_only_what_apple_runs_is_not_run(bench):
    record = json.loads(bench.bytes_of("mixed", "report.json"))
    assert {m["method"]: bool(m["runs"]) for m in record["methods"]} == {
        "features": True,
        "classify": False,
    }


def test_methods_of_a_joint_backend_are_compiled_together(bench):
    compiled = {
        package: {
            a["method"]
            for a in bench.actions()
            if (a["kind"], a["package"]) == ("compile", package)
        }
        for package in ("fp16", "apart", "mixed", "turns")
    }
    apart = {"features", "classify"}
    assert compiled["fp16"] == {"features+classify"}
    assert [compiled[package] for package in ("apart", "mixed", "turns")] == [apart] * 3


def count_preprocessed(bench):
    """Return the number of preprocessing results in the store."""
    entries = [json.loads(path.read_text()) for path in (bench.store / "actions").rglob("*.json")]
    return sum(entry["key"]["kind"] == "preprocess" for entry in entries)


def test_methods_that_share_no_weights_are_compiled_again_one_by_one(tmp_path):
    """Partitions are preprocessed one at a time, even in a unit of methods that share state."""
    shared = {"emit": {"memory_planning": {"share_mutable_buffers": True}}}
    configs = {"apart": COREML["apart"], "shared": {**COREML["apart"], **shared}}
    bench = bench_for(tmp_path, configs)
    assert bench.doit("lower") == 0, bench.output
    assert count_preprocessed(bench) == 2  # the same for both packages
    bench.edit("models/small.py", "nn.Linear(8 * 4 * 4, 10)", "nn.Linear(8 * 4 * 4, 11)")
    assert bench.doit("lower") == 0, bench.output
    outcomes = bench.outcomes()
    assert outcomes["compile apart/classify"] == "built"
    assert outcomes["compile apart/features"] == "up-to-date"
    assert outcomes["compile shared/features+classify"] == "built"
    assert count_preprocessed(bench) == 3


def test_bytes_are_those_of_the_joint_call_and_of_another_build(bench):
    joint = ["apart", "mixed", "reversed", "turns", "mps", "mlx"]
    others = {*COREML, *MIXED, *QUANTIZED, *OTHERS} - {*joint}
    check_same_bytes(bench, joint, *sorted(others))


def test_the_order_in_which_a_config_names_methods_means_nothing(bench):
    assert bench.bytes_of("reversed", "reversed.pte") == bench.bytes_of("fp16", "fp16.pte")


def test_a_fresh_checkout_compiles_nothing(bench, tmp_path):
    check_fresh_checkout_hits(bench, tmp_path / "other", "fp16", "mlx")


def models_of(pte: bytes) -> list[bytes]:
    """Return the models that a package's Core ML delegates contain or refer to."""
    file = deserialize_pte_binary(pte)
    named = file.named_data
    referred = {
        json.loads(payload.removeprefix(b"CMJR"))["key"]
        for each in file.program.backend_delegate_data
        if (payload := bytes(each.data)).startswith(b"CMJR")
    }
    whole = [bytes(each.data) for each in file.program.backend_delegate_data]
    return [bytes(named.buffers[named.pte_data[key].buffer_index]) for key in sorted(referred)] + [
        payload for payload in whole if not payload.startswith(b"CMJR")
    ]


def unpacked(model: bytes, folder: Path) -> Path:
    folder.mkdir()
    assert executorchcoreml.unflatten_directory_contents(model, str(folder))
    (metadata,) = folder.rglob("metadata.json")
    return metadata.parent


@pytest.mark.parametrize(("package", "number", "functions"), [("fp16", 1, 2), ("apart", 2, 0)])
def test_models_are_whole(bench, package, number, functions, tmp_path):
    """coremltools reads them, their ids match, and weights are where the model looks for them."""
    models = models_of(bench.bytes_of(package, f"{package}.pte"))
    assert len(models) == number
    identifiers = set()
    for place, model in enumerate(models):
        root = unpacked(model, tmp_path / str(place))
        spec = ct.utils.load_spec(str(root / "model.mlpackage"))
        assert len(spec.description.functions) == functions
        assert not any("date" in key for key in spec.description.metadata.userDefined)
        manifest = json.loads((root / "model.mlpackage" / "Manifest.json").read_text())
        items = manifest["itemInfoEntries"]
        assert items[manifest["rootModelIdentifier"]]["path"].endswith("model.mlmodel")
        for item in items.values():
            assert (root / "model.mlpackage" / "Data" / item["path"]).exists()
        identifiers.add(json.loads((root / "metadata.json").read_text())["identifier"])
    assert len(identifiers) == number
    assert all(re.fullmatch(r"executorch_[0-9a-f-]{36}", each) for each in identifiers)


def test_joined_methods_share_their_weights(bench):
    """Separately, both models contain the trunk's weights; the joined model contains them once."""
    assert len(bench.bytes_of("fp16", "fp16.pte")) < len(bench.bytes_of("apart", "apart.pte")) / 2


def spec(name, **options):
    return PartitionerSpec(name=name, options=BACKENDS[name].options(**options))


def partitioner(**options):
    (made,) = make_partitioners([spec("coreml", **options)])
    return made


def specs(**options):
    return {s.key: s.value for s in partitioner(**options).delegation_spec.compile_specs}


def program(bias=True):
    from torch.export import export

    torch.manual_seed(0)
    return export(
        torch.nn.Linear(4, 4, bias=bias).eval().requires_grad_(False), (torch.ones(1, 4),)
    )


def lowered(options, **programs):
    from executorch.exir import to_edge_transform_and_lower

    partitioners = {name: make_partitioners([spec("coreml", **options)]) for name in programs}
    return to_edge_transform_and_lower(programs, partitioner=partitioners).to_executorch().buffer


def test_upstream_alone_is_not_reproducible():
    """Once this fails, `reproducible` can be removed."""
    assert lowered({}, f=program()) != lowered({}, f=program())


def test_different_models_have_different_identifiers():
    with reproducible():
        one, same, other = (models_of(lowered({}, f=program(b))) for b in (True, True, False))
    assert one == same != other
    found = [re.search(rb"executorch_[0-9a-f-]{36}", model).group() for model in (*one, *other)]
    assert len(set(found)) == 2


def test_nothing_stays_patched():
    before = vars(CoreMLBackend)["preprocess_multimethod"]
    with pytest.raises(RuntimeError, match="inside"), reproducible():
        assert coreml_preprocess.executorchcoreml is not executorchcoreml
        raise RuntimeError("inside")
    assert vars(CoreMLBackend)["preprocess_multimethod"] is before
    assert coreml_preprocess.executorchcoreml is executorchcoreml


@pytest.mark.parametrize("names", [["a"], ["b", "a"], ["a", "\N{SNOWMAN}", "a.b", "Z"], ["", "a"]])
def test_archives_are_upstreams(names, tmp_path):
    """A folder with one file is flattened to exactly upstream's bytes, and upstream reads any
    archive. An empty name stands for an empty file, on which upstream's writer crashes."""
    root, out = tmp_path / "root", tmp_path / "out"
    out.mkdir()
    (root / "deep" / "er").mkdir(parents=True)
    for name in names:
        (root / "deep" / "er" / (name or "empty")).write_bytes(name.encode() * 1000)
    if all(names):
        theirs = executorchcoreml.flatten_directory_contents(str(root))
        assert len(archive(root)) == len(theirs)
        assert len(names) > 1 or archive(root) == theirs
    assert executorchcoreml.unflatten_directory_contents(archive(root), str(out))
    read = {path.name: path.read_bytes() for path in (out / "root" / "deep" / "er").iterdir()}
    assert read == {name or "empty": name.encode() * 1000 for name in names}


def test_every_compile_spec_has_its_option():
    read = {key.name for key in coreml_preprocess.COMPILE_SPEC_KEYS}
    generated = set(inspect.signature(CoreMLBackend.generate_compile_specs).parameters)
    assert len(read) == len({*generated, "strategy", "enumerated_shapes"})


def test_defaults_are_the_constructors():
    ours, theirs = partitioner(), CoreMLPartitioner()
    assert vars(ours).keys() == vars(theirs).keys()
    for name in vars(theirs).keys() - {"delegation_spec"}:
        assert getattr(ours, name) == getattr(theirs, name), name
    assert ours.delegation_spec.compile_specs == CoreMLBackend.generate_compile_specs()


def test_enum_members_are_the_installed_ones():
    assert list(get_args(CoreMLComputeUnit)) == [unit.name.lower() for unit in ct.ComputeUnit]
    members = ct.target.__members__.items()
    programs = {name.lower() for name, target in members if target >= ct.target.iOS15}
    assert set(NAMES["coreml_targets"]) == programs
    fields = CoreMLOptions.model_fields
    assert set(get_args(fields["compute_precision"].annotation)) == {p.value for p in ct.precision}
    strategies = fields["multimethod_weight_sharing_strategy"].annotation
    assert {s.value for s in MULTIMETHOD_WEIGHT_SHARING_STRATEGY} == set(get_args(strategies))


@pytest.mark.parametrize(
    ("option", "value", "key", "written"),
    [
        ("compute_unit", "cpu_and_ne", "compute_units", b"cpu_and_ne"),
        ("minimum_deployment_target", "macos15", "min_deployment_target", b"9"),
        ("compute_precision", "float32", "model_compute_precision", b"float32"),
        ("pass_names", ["common::dead_code_elimination"], "pass_pipeline", None),
        ("op_linear_quantizer_config", {"dtype": "int4"}, "op_linear_quantizer_config", None),
        (
            "multimethod_weight_sharing_strategy",
            "disabled",
            "multimethod_weight_sharing_strategy",
            b"disabled",
        ),
    ],
)
def test_compile_options_take_effect(option, value, key, written):
    changed = specs(**{option: value})
    assert changed[key] != specs().get(key)
    assert written is None or changed[key] == written


def test_weight_quantizer_options_are_upstreams():
    theirs = OpLinearQuantizerConfig()
    fields = inspect.signature(OpLinearQuantizerConfig).parameters
    assert set(CoreMLWeightQuantizer.model_fields) == set(fields)
    assert OpLinearQuantizerConfig._from_dict(CoreMLWeightQuantizer().resolved()) == theirs


@pytest.mark.parametrize("name", ["take_over_mutable_buffer", "take_over_constant_data"])
def test_take_over_takes_effect(name):
    assert getattr(partitioner(**{name: False}), name) is False


def test_skipped_operators_are_left_to_others():
    from executorch.exir import to_edge_transform_and_lower

    made = partitioner(skip_ops_for_coreml_delegation=["aten.add.Tensor"])

    class Add(torch.nn.Module):
        def forward(self, x):
            return torch.sin(x) + x

    edge = to_edge_transform_and_lower(
        torch.export.export(Add(), (torch.ones(2),)), partitioner=[made]
    )
    targets = {str(node.target) for node in edge.exported_program().graph.nodes}
    assert any("aten.add.Tensor" in target for target in targets)
    assert not any("aten.sin" in target for target in targets)


def test_unknown_names_are_told():
    with pytest.raises(
        PipelineError, match=r"^skip_ops_for_coreml_delegation: no operator a\.b\.c"
    ):
        partitioner(skip_ops_for_coreml_delegation=["a.b.c"])
    with pytest.raises(PipelineError, match=r"^pass_names: no pass common::const; did you mean"):
        partitioner(pass_names=["common::const"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model_type": "compiled_model"}, "compiles models on macOS only"),
        ({"minimum_deployment_target": "iOS18"}, ""),
        ({"minimum_deployment_target": "ios14"}, ""),
        ({"compute_unit": "CPU_AND_GPU"}, ""),
        ({"op_linear_quantizer_config": {"bits": 4}}, ""),
        ({"lower_full_graph": True, "take_over_constant_data": False}, "needs take_over_constant"),
        (
            {"lower_full_graph": True, "skip_ops_for_coreml_delegation": ["aten.add.Tensor"]},
            "can't be combined with",
        ),
    ],
)
def test_bad_options_are_refused(options, message):
    with pytest.raises(ValidationError, match=message):
        CoreMLOptions(**options)


class Programs:
    """Stands in for the partitions of methods, of which only the number matters."""


def preprocess(methods):
    """Call upstream with methods that have some partitions and options."""
    programs = {name: [Programs()] * number for name, (number, _) in methods.items()}
    own = {
        name: [partitioner(**options).delegation_spec.compile_specs] * number
        for name, (number, options) in methods.items()
    }
    with reproducible():
        CoreMLBackend.preprocess_multimethod(programs, own)


def test_methods_that_cannot_be_joined_are_told():
    message = (
        "the numbers of partitions differ: encode 1, decode 2; set "
        "`multimethod_weight_sharing_strategy: disabled` in every method"
    )
    with pytest.raises(PipelineError, match=re.escape(message)):
        preprocess({"encode": (1, {}), "decode": (2, {})})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"multimethod_weight_sharing_strategy": "disabled"},
            "of the first method applies to all methods, but they differ: encode positional, "
            "decode",
        ),
        ({"minimum_deployment_target": "ios16"}, "need ios18 or later, which they get: decode"),
    ],
)
def test_where_upstream_overrules_an_option_a_person_is_told(options, message, caplog):
    with suppress(AttributeError, TypeError):  # upstream goes on, to something other than a program
        preprocess({"encode": (1, {}), "decode": (1, options)})
    assert message in caplog.text


def quantization(**options):
    return make_quantizer(CoreMLQuantize(quantizer="coreml", **options))._config.global_config


def test_quantizer_defaults_are_the_configs():
    assert quantization() == ModuleLinearQuantizerConfig()


@pytest.mark.parametrize(
    ("option", "value", "upstream"),
    [
        ("quantization_scheme", "affine", "affine"),
        ("activation_observer", "min_max", "min_max"),
        ("weight_observer", "min_max", "min_max"),
        ("weight_per_channel", False, False),
        ("activation_dtype", "float32", torch.float32),
        ("weight_dtype", "quint8", torch.quint8),
    ],
)
def test_quantizer_options_take_effect(option, value, upstream):
    found = getattr(quantization(**{option: value}), option)
    assert getattr(found, "value", found) == upstream


def test_weights_alone_need_no_calibration():
    assert CoreMLQuantize(quantizer="coreml").calibrates
    assert not CoreMLQuantize(quantizer="coreml", activation_dtype="float32").calibrates
    with pytest.raises(ValidationError):
        CoreMLQuantize(quantizer="coreml", dynamic=True)


def test_patterns_hold_the_operators_that_tracing_finds(monkeypatch):
    """One pattern of each kind; patterns for operators that the model lacks are left out."""
    from pipeline.features.coreml import quantizer as coreml_quantizer

    seen = []
    original = _coreml_quantizer_utils._get_aten_graph_module

    def compared(pattern, inputs, *rest):
        made = original(pattern, inputs, *rest)
        called = {n.target for n in made.graph.nodes if n.op == "call_function"}
        seen.append(coreml_quantizer._find_operators(pattern, inputs) == called)
        return made

    monkeypatch.setattr(_coreml_quantizer_utils, "_get_aten_graph_module", compared)
    activation = torch.nn.functional
    _coreml_quantizer_utils.get_conv_pattern(2, activation.relu6, True)
    _coreml_quantizer_utils.get_conv_bn_pattern(1, activation.hardswish, False)
    _coreml_quantizer_utils.get_linear_bn_pattern(activation.gelu)
    _coreml_quantizer_utils.get_linear_pattern(activation.celu, True)
    _coreml_quantizer_utils.get_binary_op_act_pattern(torch.add, activation.tanh)
    assert seen == [True] * 5


def test_float32_is_told_to_mps():
    on, off = (make_partitioners([spec("mps", use_fp16=fp16)])[0] for fp16 in (True, False))
    assert [(s.key, s.value) for s in off.compile_specs] == [("use_fp16", b"\x00")]
    assert on.compile_specs == []


def test_mlx_leaves_the_installation_alone(bench):
    serialization = Path(executorch.__path__[0], "backends", "mlx", "serialization")
    assert not (serialization / "mlx_graph_schema.py").exists()
    assert not (serialization / "_generated").exists()


def test_mlx_names_constants_without_paths():
    """A stack trace names the model's file, and constants that the exporter lifts are named by a
    hash of the listing, comments included."""
    make_partitioners([spec("mlx")])
    from executorch.backends.mlx import preprocess

    from pipeline.features.apple.entries import mlx_reproducible as steady

    listings = [f"a = 1\n  # File: /{place}/m.py:1\nb = 2\n".encode() for place in "xy"]
    with steady():
        first, second = (preprocess.hashlib.sha256(each).hexdigest() for each in listings)
        assert first == second != preprocess.hashlib.sha256(b"a = 1\nb = 3\n").hexdigest()
    assert preprocess.hashlib.sha256(listings[0]) != preprocess.hashlib.sha256(listings[1])


OF_NO_TYPE = "its partitioner doesn't support operators of this type"


def test_what_core_ml_leaves_has_its_reason():
    told = left_by("coreml")
    assert told["aten.asinh"] == "aten.asinh.default is not supported by CoreML"
    assert told["aten.argmax"] == (
        "torch.ops.aten.{argmax, argmin}.default with dim=None is not supported by CoreML"
    )
    assert "alpha != 1 is not supported by CoreML" in told["aten.add.Tensor"]
    skipped = left_by("coreml", skip_ops_for_coreml_delegation=("aten.exp.default",))
    assert skipped["aten.exp"] == "it is in skip_ops_for_coreml_delegation: aten.exp.default"


def test_what_mps_and_mlx_leave_has_its_reason():
    told = left_by("mps")
    assert told["aten.sort"] == told["aten.argmax"] == OF_NO_TYPE
    told = left_by("mlx")
    assert told["dim_order_ops._to_dim_order_copy"] == (
        "_dim_order_copy_handler failed for dim_order_ops._to_dim_order_copy.default: "
        "Unsupported dtype: torch.float64"
    )
