"""The gate `runs_on`: what a runtime lacks, with the line that requires it and the option."""

import json

import pytest

from pipeline.features.contracts.planning import TargetPlanning, find_target_names
from pipeline.features.contracts.targets import RuntimeTarget
from pipeline.features.gates.gates import check_gates, failed_gates
from pipeline.features.gates.runs_on import Method, Runtime, _lacking_memory
from pipeline.plan.kinds.validate import ValidateInputs, validate_action
from pipeline.plan.plan import Plan
from pipeline.store.store import Store
from pipeline.store.workspace import Workspace
from tests.support.builds import delegation, manifest
from tests.support.configs import parse_config

LINE = "x * y  # models/asr.py:12, in Encode.forward"
KERNELS = [
    {
        "operator": "aten::mul.out",
        "arguments": ["float32", "float32", "float32"],
        "key": "v1/6;0|6;0|6;0",
        "instructions": [3],
    },
    {
        "operator": "aten::mul.out",
        "arguments": ["int64", "int64", "int64"],
        "key": "v1/4;0|4;0|4;0",
        "instructions": [5],
    },
    {
        "operator": "executorch_prim::add.Scalar",
        "arguments": [None, None, None],
        "key": "v1",
        "instructions": [1],
    },
]
LEFT = [
    {"operator": "aten.mul.Tensor", "line": LINE, "module": "encoder", "reason": "of rank 7"},
    {
        "operator": "aten.mul.Tensor",
        "line": "n * 2  # models/asr.py:20",
        "module": "",
        "reason": "",
    },
]


def contract(kernels=KERNELS, backends=("XnnpackBackend",), arenas=(1000,), **changes):
    own = {
        "kernels": kernels,
        "backends": list(backends),
        "planned_memory": [{"arena": n, "size": size} for n, size in enumerate(arenas, 1)],
    }
    return {
        "schemas": [{"identifier": "ET12", "version": 0}],
        "executorch": ["1.4.1"],
        "alignment": {"segments": 128, "constants": 16, "payloads": None, "planned_memory": 16},
        "methods": {"encode": own, "decode": {**own, "kernels": [], "backends": []}},
        **changes,
    }


def build(lowering=None, quantized=None):
    made = manifest()
    left = [{**each, "place": place} for each, place in zip(LEFT, (7, 9), strict=True)]
    made["methods"]["encode"] |= {
        "delegation": delegation(8, {"aten.mul.Tensor": 2}, left=left),
        "instructions": {"nodes": [[0, 3, 7], [0, 5, 9]], "delegates": [], "state": []},
        "quantized": quantized,
    }
    made["methods"]["encode"]["lowering"] |= lowering or {}
    return made


def failures(target, needs=None, own=None, **changes):
    """Return the gate's messages on a package that must run on the target `phone`."""
    data = {
        "model": "asr",
        "methods": {"encode": {"partitioners": []}, "decode": {"partitioners": []}},
        "validate": {"gates": {"runs_on": ["phone"]}, "methods": own or {}},
    }
    settings = parse_config("asr", data, "asr.yaml").validation.resolved()
    if "refusals" not in target:
        target = RuntimeTarget.model_validate(target).resolved()
    settings["targets"] = {"phone": target}
    record = {"methods": [], "delegation": {"encode": {"left": LEFT}}}
    results = check_gates(
        settings, build(**changes), validation=record, contract=needs or contract()
    )
    assert all(each["ok"] == (each["figure"] == 0) for each in results)
    return failed_gates(results)


HOLDS = {"operators": ["aten::mul.out"], "backends": ["xnnpack"]}


@pytest.mark.parametrize(
    "target",
    [
        HOLDS,
        {"kernels": ["portable"], "backends": ["XnnpackBackend"]},
        {"operators": ["aten::*"], "backends": ["xnnpack"], "dtypes": ["float32", "int64"]},
        {**HOLDS, "executorch": "1.4.0", "identifier": "ET12", "schema_version": 0},
        {**HOLDS, "executorch": "2.0", "memory": 1000, "alignment": 16},
        {**HOLDS, "memory": {1: 1000}, "alignment": {"segments": 128, "payloads": 4096}},
        {
            "operators": ["aten::*", {"aten::mul.out": ["float32", "int64"]}],
            "backends": ["xnnpack"],
            "dtypes": ["bool"],
        },
    ],
    ids=str,
)
def test_a_runtime_that_holds_all_passes(target):
    assert failures(target) == []


def test_what_a_runtime_refused_is_a_need_beside_those_of_its_lists():
    refusals = {"decode": "operator aten::foo.out", "": "it is not there"}
    given = RuntimeTarget.model_validate({**HOLDS, "runtime": "et13"}).resolved()
    for_decode, for_all = ({**given, "refusals": {name: refusals[name]}} for name in ("decode", ""))
    assert failures(for_decode) == [
        "decode: the runtime of phone can't run it (tried in et13): operator aten::foo.out"
    ]
    assert failures(for_all) == [
        "the runtime of phone can't run it (tried in et13): it is not there"
    ]


def test_a_missing_operator_is_told_with_its_lines_and_what_avoids_it():
    (sentence,) = failures({"backends": ["xnnpack"]})
    assert sentence == (
        f"encode: the runtime of phone lacks aten::mul.out, for `{LINE}`, `n * 2  # "
        "models/asr.py:20`; not delegated (of rank 7); rewrite it in a pass of "
        "`edge.passes`, or build the runtime with it (`doit contract asr` shows how)"
    )


def test_a_missing_dtype_is_told_with_the_line_that_has_it():
    (sentence,) = failures({**HOLDS, "operators": [{"aten::mul.out": ["float32"]}]})
    assert sentence.startswith(
        "encode: the runtime of phone lacks aten::mul.out for int64, for `n * 2  # "
        "models/asr.py:20`, but has it for float32; "
    )


def test_places_of_a_quantized_program_are_not_those_of_its_source():
    (sentence,) = failures(
        {**HOLDS, "operators": [{"aten::mul.out": ["float32"]}]}, quantized="f" * 64
    )
    assert f"for `{LINE}`, `n * 2" in sentence  # among all calls of the operator


@pytest.mark.parametrize(
    ("operator", "lowering", "told"),
    [
        ("aten::mul.out", {"edge": {"preserve_ops": ["aten.mul.Tensor"]}}, "edge.preserve_ops"),
        ("aten::mul.out", {"partitioners": []}, "delegate it: phone has xnnpack"),
        ("aten::mul.out", {"modules": ["decoder"]}, "add its module to `modules`"),
        ("dim_order_ops::_clone_dim_order.out", {}, "`edge: {skip_dim_order: true}`"),
        ("et_copy::_h2d_copy.out", {}, "`emit: {propagate_device: ...}`"),
        (
            "quantized_decomposed::quantize_per_tensor.out",
            {"quantize": {"quantizer": "xnnpack"}},
            "delegate what is on both sides of it, or leave `quantize` out",
        ),
        ("team::scale.out", {}, "link a kernel of your own, since ExecuTorch has none"),
    ],
)
def test_the_option_that_avoids_an_operator(operator, lowering, told):
    needs = contract([{**KERNELS[0], "operator": operator, "instructions": [99]}])
    (sentence,) = failures({"backends": ["xnnpack"]}, needs, lowering=lowering)
    assert f"lacks {operator}" in sentence and told in sentence


def test_an_operator_that_is_nearly_held_is_a_spelling():
    needs = contract([{**KERNELS[0], "operator": "team::scale.out", "instructions": []}])
    (sentence,) = failures({"operators": ["team::scales.out"], "backends": ["xnnpack"]}, needs)
    assert "(did you mean 'team::scales.out'?)" in sentence


@pytest.mark.parametrize(
    ("target", "needs", "told"),
    [
        (
            {},
            {},
            "encode: the runtime of phone lacks XnnpackBackend, which runs 1 of its partitions; "
            "take xnnpack out of `partitioners`, or link the backend",
        ),
        ({"memory": 999}, {}, "memory, but it plans 1,000; try another `emit.memory_planning"),
        ({"memory": {1: 999}}, {}, "has 999 bytes in arena 1, but it plans 1,000"),
        ({"memory": {1: 1000}}, {"arenas": (9, 5)}, "has no arena 2, in which it plans 5 bytes"),
        (
            {"schema_version": 0},
            {"schemas": [{"identifier": "ET12", "version": 1}]},
            "the runtime of phone reads schema version 0, but the package has 1; lower it with",
        ),
        (
            {"identifier": "ET12"},
            {"schemas": [{"identifier": "ET13", "version": 0}]},
            "reads ET12, but the package is ET13",
        ),
        ({"executorch": "1.3.9"}, {}, "has executorch 1.3.9, but the package was made by 1.4.1"),
        (
            {"alignment": {"constants": 64}},
            {},
            "needs constants aligned to 64 bytes, but the package's are aligned to 16; set "
            "`emit.layout.constant_tensor_alignment: 64`",
        ),
    ],
    ids=str,
)
def test_what_else_a_runtime_lacks(target, needs, told):
    operators = {"operators": ["aten::mul.out"]} if target == {} else HOLDS
    sentences = failures({**operators, **target}, contract(**needs))
    assert any(told in each for each in sentences), sentences


def test_without_a_contract_it_fails_and_says_what_makes_it():
    needs = contract()
    del needs["methods"]["decode"]
    sentences = failures(HOLDS, needs)
    assert sentences == [
        "decode: its requirements for a runtime are unknown, since there is no contract.json; "
        "`doit -a lower:asr` makes it"
    ]


def test_a_method_may_be_held_to_another_target_or_none():
    assert failures({}, own={"encode": {"gates": {"runs_on": []}}}) == []


def test_the_target_of_a_config_is_held_to_unless_others_are_named(tmp_path):
    facts = RuntimeTarget.model_validate(HOLDS).resolved()

    def held_to(targets, **validate):
        data = {
            "model": "asr",
            "target": "phone",
            "methods": {"encode": {"partitioners": []}},
            "validate": validate,
        }
        config = parse_config("asr", data, "asr.yaml")
        root = tmp_path / "-".join(["root", *targets])
        (root / "targets").mkdir(parents=True, exist_ok=True)
        for name in targets:
            (root / "targets" / f"{name}.yaml").write_text(json.dumps(HOLDS))
        plan = Plan(Workspace(root, Store(tmp_path / "store"), 1))
        further_fields = TargetPlanning(plan).held_to("asr", {}, config)
        action = validate_action(ValidateInputs(config, {}, {}, held_to=further_fields))
        return find_target_names(config), action.key["held_to"]

    names, key = held_to(["phone"])
    assert names == ["phone"] and key["gates"]["runs_on"] == ["phone"]
    assert key["targets"] == {"phone": facts}  # the file's content counts
    names, key = held_to([])  # a label
    assert key["gates"]["runs_on"] is None and "targets" not in key
    names, key = held_to(["watch"], gates={"runs_on": ["watch"]})
    assert names == ["watch"] and key["gates"]["runs_on"] == ["watch"]
    names, key = held_to([], gates={"runs_on": []})
    assert names == [] and key["gates"]["runs_on"] == []


def test_smaller_bounds_are_advised_where_sizes_have_bounds():
    """There is no advice for a static size, which has no bounds."""
    contract = {"planned_memory": [{"arena": 1, "size": 1000}]}
    runtime = Runtime("phone", {"memory": {"0": 999}})
    for size, advised in ((8, False), ({"size": "d0", "min": 2, "max": 64}, True)):
        signature = {"args": [["x", {"dtype": "float32", "sizes": [size, 3]}]], "outputs": None}
        (line,) = _lacking_memory(Method("p", {"signature": signature}, contract), runtime)
        assert ("smaller upper bounds" in line) is advised
