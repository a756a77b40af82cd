"""Keys contain exactly what can change a result."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from pipeline import backends
from pipeline.features.quantization.kind import QuantizeInputs, quantize_action
from pipeline.plan.kinds import parts
from pipeline.plan.kinds.compile import CompileInputs, compile_action
from pipeline.plan.kinds.link import describe_package, link_action
from pipeline.plan.kinds.validate import ValidateInputs, validate_action
from pipeline.plan.status import describe_changes
from pipeline.program.sources import MethodSource
from pipeline.store import toolchain
from pipeline.store.store import Store
from pipeline.store.workspace import Workspace
from tests.support.configs import parse_config

SOURCES = {
    name: MethodSource(
        Path(f"/models/{name}.pt2"), name, f"program-{name}", names="names", examples="examples"
    )
    for name in ("encode", "decode")
}


def config(**changes):
    data = {
        "model": "m",
        "methods": {
            "encode": {"partitioners": ["xnnpack"]},
            "decode": {
                "partitioners": ["xnnpack"],
                "quantize": {"quantizer": "xnnpack"},
            },
        },
        **changes,
    }
    return parse_config("package", data, "package.yaml")


def keys(config, sources=SOURCES):
    """Return the digests of a package's actions, by unit, and of its link."""
    quantizes = quantizations(config, sources)
    compiles = compilations(config, quantizes, sources)
    link = link_action(describe_package(config, compiles, quantizes, sources))
    return {
        **{f"quantize {name}": action.digest for name, action in quantizes.items()},
        **{action.method: action.digest for action in compiles},
        "link": link.digest,
    }


def quantizations(config, sources=SOURCES):
    return {
        name: quantize_action(QuantizeInputs(config, name, sources)) for name in config.quantized
    }


def compilations(config, quantizes, sources=SOURCES):
    passes = {reference: {} for reference in config.pass_references(config.methods)}
    actions = []
    for unit in config.units:
        used = {name: source for name, source in sources.items() if name in unit}
        digests = {name: quantizes[name].digest for name in unit if name in quantizes}
        actions.append(compile_action(CompileInputs(config, unit, used, digests, passes)))
    return actions


def changed(first, second):
    return {name for name in first if first[name] != second.get(name)}


def methods(**changes):
    data = {
        "encode": {"partitioners": ["xnnpack"]},
        "decode": {"partitioners": ["xnnpack"], "quantize": {"quantizer": "xnnpack"}},
    }
    return {"methods": {**data, **changes}}


CONFIG_CHANGES = {
    "partitioner": (methods(encode={"partitioners": []}), {"encode", "link"}),
    "option": (
        methods(encode={"partitioners": [{"xnnpack": {"per_op_mode": True}}]}),
        {"encode", "link"},
    ),
    "twice": (methods(encode={"partitioners": ["xnnpack", "xnnpack"]}), {"encode", "link"}),
    "quantizer": (
        methods(
            decode={
                "partitioners": ["xnnpack"],
                "quantize": {"quantizer": "xnnpack", "per_channel": False},
            }
        ),
        {"quantize decode", "decode", "link"},
    ),
    "partitioner of a quantized method": (
        methods(decode={"partitioners": [], "quantize": {"quantizer": "xnnpack"}}),
        {"decode", "link"},
    ),
    "emit": ({"emit": {"external_constants": True}}, {"encode", "decode", "link"}),
    "weights": ({"emit": {"external_weights": True}}, {"encode", "decode", "link"}),
    "buffers": ({"emit": {"initialized_buffers": ["x"]}}, {"encode", "decode", "link"}),
    "constant method": ({"constant_methods": {"get_n": 1}}, {"link"}),
    "metadata": ({"emit": {"metadata": True}}, {"link"}),
    "target": ({"target": "phone"}, {"link"}),
    "tolerance": ({"validate": {"atol": 1.0}}, set()),
}


@pytest.mark.parametrize(("change", "affected"), CONFIG_CHANGES.values(), ids=CONFIG_CHANGES)
def test_config_changes_the_keys_of_what_it_affects(change, affected):
    assert changed(keys(config()), keys(config(**change))) == affected


def test_the_order_of_files_of_weights_counts():
    """A constant goes to the first file whose pattern matches its name."""
    for option in ("external_weights", "external_files"):
        files = {"one": ["*"], "two": ["head.*"]}
        first, second = (
            keys(config(emit={option: dict(order)}))
            for order in (files.items(), reversed(files.items()))
        )
        assert changed(first, second) == {"encode", "decode", "link"}


def test_defaults_spelled_out_are_the_same():
    spelled = methods(encode={"partitioners": [{"xnnpack": {"per_op_mode": False}}]})
    assert keys(config()) == keys(config(**spelled))


SOURCE_CHANGES = {
    "program": ({"program": "other"}, {"link", "encode"}),
    "examples of a method that is not calibrated": ({"examples": "other"}, set()),
    "names of values, which XNNPACK does not read": ({"names": "other"}, set()),
    "place": ({"archive": Path("/elsewhere.pt2"), "entry": "x", "exported": True}, set()),
}


@pytest.mark.parametrize(("change", "affected"), SOURCE_CHANGES.values(), ids=SOURCE_CHANGES)
def test_source_changes_the_keys_of_what_it_affects(change, affected):
    sources = {**SOURCES, "encode": SOURCES["encode"]._replace(**change)}
    assert changed(keys(config()), keys(config(), sources)) == affected


def test_names_of_values_count_for_a_backend_that_may_read_them(monkeypatch):
    xnnpack = backends.BACKENDS["xnnpack"]
    reading = {
        "xnnpack": replace(xnnpack, preprocessing=replace(xnnpack.preprocessing, names_count=True))
    }
    monkeypatch.setattr(backends, "BACKENDS", reading)
    sources = {**SOURCES, "encode": SOURCES["encode"]._replace(names="other")}
    assert changed(keys(config()), keys(config(), sources)) == {"encode", "link"}


@pytest.mark.parametrize("kind", ["calibration", "examples"])
def test_calibration_inputs_count_for_static_quantization(kind):
    sources = {**SOURCES, "decode": SOURCES["decode"]._replace(**{kind: "other"})}
    assert changed(keys(config()), keys(config(), sources)) == {"quantize decode", "decode", "link"}


def test_names_of_values_count_for_a_quantized_program_which_bears_them():
    sources = {**SOURCES, "decode": SOURCES["decode"]._replace(names="other")}
    assert changed(keys(config()), keys(config(), sources)) == {"quantize decode", "decode", "link"}


def quantizing(**options):
    files = {"quantize.calibration": options.get("calibration", ())}
    made = config(**methods(decode={"partitioners": [], "quantize": options}))
    return quantize_action(QuantizeInputs(made, "decode", SOURCES, files))


def test_a_quantize_key_names_neither_package_nor_partitioners():
    one = quantizing(quantizer="xnnpack")
    data = {"model": "m", **methods(), "target": "phone", "emit": {"external_constants": True}}
    other = parse_config("another", data, "another.yaml")
    inputs = QuantizeInputs(other, "decode", SOURCES)
    assert one.digest == quantize_action(inputs).digest


def test_host_counts_where_a_model_is_run_to_quantize_it():
    assert "host" in quantizing(quantizer="xnnpack").key
    assert (
        "host"
        in quantizing(quantizer="xnnpack", dynamic=True, operators={"add": {"dynamic": False}}).key
    )
    assert "host" not in quantizing(quantizer="xnnpack", dynamic=True).key
    torchao = {"quantizer": "torchao", "scheme": "int4_weight_only"}
    assert "host" not in quantizing(**torchao).key
    assert "host" in quantizing(**torchao, algorithm="hqq_scale_only").key


def test_calibration_files_count_by_content_and_order():
    keys = {
        quantizing(quantizer="xnnpack").digest,
        quantizing(quantizer="xnnpack", calibration=["a.pt", "b.pt"]).digest,
        quantizing(quantizer="xnnpack", calibration=["b.pt", "a.pt"]).digest,
        quantizing(quantizer="xnnpack", calibration=["a.pt"]).digest,
        quantizing(quantizer="xnnpack", calibration=["a.pt"], batches=1).digest,
    }
    assert len(keys) == 5


def test_names_of_calibration_files_do_not_count():
    def key(name):
        quantize = {"quantizer": "xnnpack", "calibration": name}
        made = config(**methods(decode={"partitioners": [], "quantize": quantize}))
        files = {"quantize.calibration": ["content"]}
        inputs = QuantizeInputs(made, "decode", SOURCES, files)
        return quantize_action(inputs).digest

    assert key("a.pt") == key("folder/b.npz")


@pytest.mark.parametrize("name", ["executorch", "torch", "flatbuffers", "torchao", "numpy"])
def test_versions_count(monkeypatch, name):
    before = keys(config())
    original = toolchain.version_of
    monkeypatch.setattr(toolchain, "version_of", lambda n: "0.0" if n == name else original(n))
    every = {"encode", "decode", "quantize decode", "link"}
    assert changed(before, keys(config())) == every


def test_code_counts(monkeypatch):
    before = keys(config())
    monkeypatch.setattr(parts, "code", lambda kind: "other")
    every = {"encode", "decode", "quantize decode", "link"}
    assert changed(before, keys(config())) == every


def test_order_of_methods_counts_for_the_link_alone():
    sources = dict(reversed(SOURCES.items()))
    assert changed(keys(config()), keys(config(), sources)) == {"link"}


def test_order_of_methods_counts_where_they_are_compiled_together():
    """A backend that sees all methods takes them in the model's order."""
    together = config(methods={n: {"partitioners": ["coreml"]} for n in ("encode", "decode")})
    assert list(together.units) == [("encode", "decode")]
    turned = dict(reversed(SOURCES.items()))
    assert changed(keys(together), keys(together, turned)) == {"encode+decode", "link"}


def test_validation_is_keyed_by_package_programs_inputs_and_settings():
    def key(settings=None, files=None, sources=SOURCES, package=None, examples=None):
        changed = config(**({"validate": settings} if settings else {}))
        changed = changed.model_copy(update={"package": package or changed.package})
        files = files or {"m.pte": "bytes"}
        return validate_action(ValidateInputs(changed, files, sources, examples or {})).digest

    other = {**SOURCES, "encode": SOURCES["encode"]._replace(examples="other")}
    found = {key(), key({"atol": 1.0}), key(files={"m.pte": "x"}), key(sources=other)}
    found.add(key(package="twin"))  # the same bytes, with a separate report
    found |= {key(examples={"encode": [content]}) for content in ("one", "two")}
    found |= {key({"cases": []}), key({"methods": {"encode": {"cases": []}}})}
    found.add(key({"sequences": [["encode", "encode"]]}))
    assert len(found) == 10
    every = ["expanded", "strided", "limits", "large", "zeros"]
    assert key({"methods": {"encode": {"cases": every}}}) == key({"methods": {"encode": {}}})
    assert key({"sequences": []}) == key()
    named = {"methods": {"encode": {"examples": ["a.npz"]}}}
    moved = {"methods": {"encode": {"examples": ["b/c.npz"]}}}
    content = {"encode": ["one"]}
    assert key(named, examples=content) == key(moved, examples=content)


def test_changes_of_the_link_of_a_quantized_method_are_described(tmp_path):
    def link(**changes):
        made = config(**changes)
        quantizes = quantizations(made)
        units = compilations(made, quantizes)
        return link_action(describe_package(made, units, quantizes, SOURCES))

    workspace = Workspace(tmp_path, Store(tmp_path / "store"), 1)
    models = SimpleNamespace(
        source=lambda export: SimpleNamespace(path=tmp_path / "models" / f"{export}.py")
    )
    plan = SimpleNamespace(workspace=workspace, models=models)
    found = list(describe_changes(plan, link().key, link(target="phone")))
    assert found == ["config target: None -> phone"]
