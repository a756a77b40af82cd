"""Each gate passes up to its limit, and then fails with the figure, the limit and the change."""

import pytest

from pipeline.features.gates.figures import make_figures
from pipeline.features.gates.gates import check_gates, failed_gates
from pipeline.features.gates.section import section
from pipeline.moments import show_error
from pipeline.plan.checks import find_places
from pipeline.plan.kinds.validate import ValidateInputs, validate_action
from pipeline.report.elements import DataTable
from pipeline.store.errors import ConfigErrors
from tests.support.builds import contents, delegation, estimate, manifest, proved, validation
from tests.support.configs import parse_config, read_configs

BASELINE = make_figures(manifest(), contents(), validation())


def settings(gates, **methods):
    """Return settings as a config resolves them."""
    data = {
        "model": "asr",
        "methods": {"encode": {"partitioners": []}, "decode": {"partitioners": []}},
        "validate": {"gates": gates, "methods": {n: {"gates": g} for n, g in methods.items()}},
    }
    return parse_config("asr", data, "asr.yaml").validation.resolved()


def failures(gates, build=None, inside=None, record=None, baseline=BASELINE, own=None, in_ci=True):
    results = check_gates(
        {**settings(gates, **(own or {})), "requires_baseline": in_ci},
        build or manifest(),
        inside or contents(),
        record or validation(),
        baseline,
    )
    return failed_gates(results)


def lowered(encode=None, decode=None):
    """Return a manifest with other delegation."""
    build = manifest()
    for name, other in (("encode", encode), ("decode", decode)):
        if other is not None:
            build["methods"][name]["delegation"] = other
    return build


def sized(size):
    return manifest(files={"asr.pte": {"digest": "c" * 64, "size": size}})


def test_without_gates_nothing_is_checked():
    assert check_gates(settings({}), manifest()) == []


def test_a_record_for_each_gate_and_method_with_its_place():
    places = {
        "validate.gates.max_size": "asr.yaml:3",
        "validate.methods.decode.gates.min_delegated_ops": "asr.yaml:9",
    }
    results = check_gates(
        settings({"max_size": "1kB", "min_delegated_ops": 0.5}, decode={"min_delegated_ops": 0.9}),
        manifest(),
        contents(),
        places=places,
    )
    assert results == [
        {
            "gate": "max_size",
            "method": None,
            "unit": "bytes",
            "figure": 1000,
            "limit": 1000,
            "ok": True,
            "sentence": "",
            "place": "asr.yaml:3",
        },
        {
            "gate": "min_delegated_ops",
            "method": "decode",
            "unit": "share",
            "figure": 0.5,
            "limit": 0.9,
            "ok": False,
            "sentence": "decode: 50.0 % of operators delegated, at least 90.0 % required; left to "
            "portable kernels: aten.add.Tensor x1",
            "place": "asr.yaml:9",
        },
        {
            "gate": "min_delegated_ops",
            "method": "encode",
            "unit": "share",
            "figure": 0.5,
            "limit": 0.5,
            "ok": True,
            "sentence": "",
            "place": "",
        },
    ]


LATENCY = {
    "ratio": 2.0,
    "steady_ms": {"median": 4.0, "low": 3.9, "high": 4.1},
    "source_ms": {"median": 2.0},
}
LEFT = delegation(
    5,
    {"aten.mul.Tensor": 3, "aten.view_copy": 2},
    left=[
        {"operator": "aten.mul.Tensor", "place": 4, "module": "encoder.act", "reason": "of int32"},
        {"operator": "aten.mul.Tensor", "place": 7, "module": "encoder.act", "reason": ""},
        {"operator": "aten.view_copy", "place": 9, "module": "", "reason": ""},
    ],
)


@pytest.mark.parametrize(
    ("gates", "record", "sentence"),
    [
        (
            {"min_delegated_nodes": 0.6},
            {"build": lowered(LEFT)},
            "encode: 50.0 % of nodes delegated, at least 60.0 % required; left to portable "
            "kernels: aten.mul.Tensor x3 (in encoder.act: of int32), aten.view_copy x2; newly left "
            "since "
            "the baseline: aten.mul.Tensor x3",
        ),
        (
            {"max_delegation_drop": "10%"},
            {"build": lowered(LEFT)},
            "encode: 50.0 % of nodes delegated, 80.0 % in the baseline: 30.0 % less, at most "
            "10.0 % allowed; newly left to portable kernels: aten.mul.Tensor x3 (in "
            "encoder.act: of int32)",
        ),
        (
            {"max_delegation_drop": 0},
            {"build": lowered(decode=delegation(9, {"aten.add.Tensor": 3}))},
            "decode: 75.0 % of nodes delegated, 90.0 % in the baseline: 15.0 % less, at most 0.0 % "
            "allowed; newly left to portable kernels: aten.add.Tensor x3 (was x1)",
        ),
        (
            {"allow_portable_ops": ["aten.*_copy.default", "aten.add.*"]},
            {"build": lowered(LEFT)},
            "encode: left to portable kernels, where only aten.*_copy, aten.add.* may be: "
            "aten.mul.Tensor x3 (in encoder.act: of int32); newly left since the baseline: "
            "aten.mul.Tensor x3",
        ),
        (
            {"max_size": 1100},
            {"build": sized(1500), "inside": contents(1100)},
            "the package has 1,500 bytes, at most 1,100 allowed; grew: constants by 500 bytes to "
            "1,100; methods: decode by 250 bytes to 650, encode by 250 bytes to 650",
        ),
        (
            {"max_size": 1100},
            {"build": sized(1500), "inside": contents(1100), "baseline": None},
            "the package has 1,500 bytes, at most 1,100 allowed; constants 1,100, program 300, "
            "delegate 100",
        ),
        (
            {"max_size_growth": "2%"},
            {
                "build": sized(1030),
                "inside": contents(630, **{"decoder.weight": 230, "head.weight": 800, "b": 8}),
            },
            "the package grew by 3.0 % since the baseline, from 1,000 to 1,030 bytes, at most "
            "2.0 % allowed; grew: constants by 30 bytes to 630; methods: decode by 15 bytes to 415"
            ", encode by 15 bytes to 415; tensors: head.weight is new, 800 bytes, decoder.weight "
            "by 30 bytes to 230",
        ),
        (
            {"max_size_growth": "2%"},  # nothing that the baseline lists grew
            {"build": sized(1030), "inside": contents(600)},
            "the package grew by 3.0 % since the baseline, from 1,000 to 1,030 bytes, at most "
            "2.0 % allowed",
        ),
        (
            {"max_planned_memory": "2kB"},
            {"inside": contents(memory=2000)},
            "decode: plans 2,256 bytes of memory, at most 2,000 allowed; arena 1: 2,000, arena 2: "
            "256; 2,304 in the baseline",
        ),
        (
            {"max_latency_ratio": 2},
            {
                "record": validation(
                    encode=proved("encode", [131.5], latency=LATENCY),
                    decode=proved(
                        "decode",
                        [42.06, "inf"],
                        latency={
                            "ratio": 3.104,
                            "steady_ms": {"median": 12.11, "low": 12.0, "high": 12.2},
                            "source_ms": {"median": 3.9},
                        },
                    ),
                )
            },
            "decode: takes 3.10 times as long as its source (12.1 ms against 3.9 ms), at most 2 "
            "times allowed",
        ),
        (
            {"max_sqnr_drop": 3},
            {"record": validation(decode=proved("decode", [45.0, 130.0], [36.04, 116.0]))},
            "decode: SQNR dropped since the baseline: logits from 42.1 dB to 36 dB, 6.1 dB less, "
            "state from 120 dB to 116 dB, 4.0 dB less; at most 3 dB allowed",
        ),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else None,
)
def test_a_regression_fails_its_gate_with_figure_limit_and_what_changed(gates, record, sentence):
    assert sentence in failures(gates, **record)


@pytest.mark.parametrize(
    "gates",
    [
        {"min_delegated_nodes": 0.8, "min_delegated_ops": 0.5},
        {"allow_portable_ops": ["aten.add.Tensor", "aten.view_copy.default"]},
        {"max_size": 1000, "max_planned_memory": 2304},
        {"max_size_growth": 0, "max_delegation_drop": 0, "max_sqnr_drop": 0},
    ],
    ids=str,
)
def test_at_the_limit_a_gate_holds(gates):
    assert failures(gates) == []


@pytest.mark.parametrize(
    ("gate", "limit", "stricter"),
    [
        ("max_size", 1050, 1049),
        ("max_size_growth", "5%", "4.99%"),  # 1050 / 1000 - 1 is slightly more than 0.05
        ("min_delegated_nodes", 0.8, 0.801),
        ("min_delegated_ops", 0.5, 0.501),
        ("allow_portable_ops", ["aten.view_copy", "aten.add.Tensor"], ["aten.view_copy"]),
        ("max_planned_memory", 2304, 2303),
        ("max_latency_ratio", 2, 1.999),
        ("max_delegation_drop", "5%", "4.99%"),  # 90 % - 85 % is slightly more than 0.05
        ("max_sqnr_drop", 3, 2.9),
    ],
)
def test_the_limit_itself_holds_and_one_step_beyond_fails(gate, limit, stricter):
    def proved_at(sqnr):
        return validation(
            encode=proved("encode", [80.0], latency=LATENCY),
            decode=proved("decode", [sqnr], latency=LATENCY),
        )

    before = lowered(decode=delegation(90, {"aten.add.Tensor": 10}))
    build = lowered(decode=delegation(85, {"aten.add.Tensor": 15}))
    build["files"] = sized(1050)["files"]
    baseline = make_figures(before, contents(), proved_at(45.0))
    assert failures({gate: limit}, build, record=proved_at(42.0), baseline=baseline) == []
    assert failures({gate: stricter}, build, record=proved_at(42.0), baseline=baseline) != []


def test_an_output_that_is_lost_in_noise_fails_and_can_be_recorded():
    record = validation(decode=proved("decode", ["-inf"]))
    baseline = make_figures(manifest(), contents(), validation(decode=proved("decode", [42.0])))
    results = check_gates(settings({"max_sqnr_drop": 3}), manifest(), contents(), record, baseline)
    (gate,) = (each for each in results if each["method"] == "decode")
    assert not gate["ok"] and "from 42 dB to -inf dB" in gate["sentence"]
    assert gate["figure"] is None  # strict JSON has no infinities


@pytest.mark.parametrize("gate", ["max_size_growth", "max_delegation_drop", "max_sqnr_drop"])
def test_a_gate_against_a_baseline_that_is_not_there_fails_once(gate):
    (failure,) = failures({gate: 0.5}, baseline=None)
    assert failure == "no baseline; `doit baseline asr` accepts the current figures"
    assert show_error(failure, "validate") == f"{failure} [PTE504]"


@pytest.mark.parametrize("gate", ["max_delegation_drop", "max_sqnr_drop"])
def test_a_method_that_the_baseline_lacks_fails(gate):
    without = {**BASELINE, "methods": {"encode": BASELINE["methods"]["encode"]}}
    assert failures({gate: 0.5}, baseline=without) == [
        "decode: not in the baseline; `doit baseline asr` accepts its figures"
    ]


@pytest.mark.parametrize("gate", ["max_size_growth", "max_delegation_drop", "max_sqnr_drop"])
@pytest.mark.parametrize("baseline", [None, {**BASELINE, "methods": {}}])
def test_outside_of_ci_a_gate_waits_for_its_baseline(gate, baseline):
    results = check_gates(settings({gate: 0.5}), manifest(), contents(), validation(), baseline)
    if baseline is not None and gate == "max_size_growth":
        assert "left_alone" not in results[0]  # the size is included
        return
    assert results and failed_gates(results) == []
    for result in results:
        assert result["ok"] and result["figure"] is None  # neither met nor broken
        assert result["left_alone"] == "no baseline"
        sentence = result["sentence"]
        if baseline is None:
            assert sentence == "no baseline yet; `doit baseline asr` records one"
        else:
            assert sentence.endswith(
                "not in the baseline yet; `doit baseline asr` accepts its figures"
            )


def test_a_baseline_of_another_machine_that_ran_nothing_is_waited_for_too():
    unrun = validation(decode=proved("decode", not_run="no device"))
    baseline = make_figures(manifest(), contents(), unrun)
    gates = {"max_sqnr_drop": 3}
    told = "decode: no SQNR in the baseline; `doit baseline asr` accepts it"
    assert failures(gates, baseline=baseline) == [told]
    assert failures(gates, baseline=baseline, in_ci=False) == []


def portable():
    """Return a manifest whose decode has no partitioners."""
    build = lowered(decode=delegation(0, {"aten.embedding": 1}))
    build["methods"]["decode"]["lowering"] = {"partitioners": []}
    return build


DELEGATION = {
    "min_delegated_nodes": 0.7,
    "min_delegated_ops": 0.5,
    "allow_portable_ops": ["aten.view_copy"],
}


@pytest.mark.parametrize("gate", DELEGATION)
def test_delegation_of_a_method_without_partitioners_is_no_gate_of_the_package(gate):
    results = check_gates(settings({gate: DELEGATION[gate]}), portable())
    decode, encode = sorted(results, key=lambda result: result["method"])
    assert failed_gates(results) == []
    assert encode["figure"] is not None and "left_alone" not in encode
    assert decode["ok"] and decode["figure"] is None
    assert decode["left_alone"] == "no partitioners"
    assert decode["sentence"] == "decode: no partitioners, by choice (`partitioners: []`)"


@pytest.mark.parametrize("gate", DELEGATION)
def test_delegation_of_a_method_without_partitioners_is_its_own_gate_where_it_says_so(gate):
    own = {"decode": {gate: DELEGATION[gate]}}
    (sentence,) = failures({}, build=portable(), own=own)
    assert sentence.startswith("decode: ")


def test_the_row_of_a_gate_that_is_left_alone_says_why():
    gates = {"min_delegated_nodes": 0.7, "max_size_growth": 0.1}
    results = check_gates(settings(gates), portable())
    methods = [{"method": name, "sqnr_db": None} for name in ("encode", "decode")]
    report = {"gates": results, "methods": methods}
    (table,) = (part for part in section(report).parts if isinstance(part, DataTable))
    rows = {(row["of"], row["gate"].text): row["verdict"].text for row in table.rows}
    assert rows == {
        ("package", "max_size_growth"): "no baseline yet",
        ("encode", "min_delegated_nodes"): "passed",
        ("decode", "min_delegated_nodes"): "does not apply",
    }


@pytest.mark.parametrize(
    ("gate", "unit", "count", "text"),
    [
        ("runs_on", "needs", 0, "0 unmet needs"),
        ("runs_on", "needs", 1, "1 unmet need"),
        ("allow_portable_ops", "calls", 2, "2 calls"),
    ],
)
def test_the_row_of_a_gate_without_a_number_says_what_is_counted(gate, unit, count, text):
    record = {"gate": gate, "method": None, "unit": unit, "figure": count, "limit": 0}
    record |= {"ok": not count, "sentence": ""}
    (table,) = (p for p in section({"gates": [record], "methods": []}).parts if p.rows)
    (row,) = table.rows
    assert (row["figure"].text, row["limit"].text) == (text, "none")


def test_a_method_that_lost_its_partitioners_fell_below_its_baseline():
    (sentence,) = failures({"max_delegation_drop": 0.5}, build=portable())
    assert sentence.startswith("decode: 0.0 % of nodes delegated, 90.0 % in the baseline")


def test_another_number_of_outputs_is_no_comparison():
    record = validation(decode=proved("decode", [42.06]))
    assert failures({"max_sqnr_drop": 3}, record=record) == [
        "decode: has 1 outputs, 2 in the baseline; `doit baseline asr` accepts that"
    ]


@pytest.mark.parametrize(
    ("before", "now", "sentence"),
    [
        ([42.0, None], [42.0, 3.0], "decode: state has an SQNR only now"),
        ([42.0, 80.0], [42.0, None], "decode: state has an SQNR only in the baseline"),
        ([42.0, None], [42.0, None], None),  # an output that is all zeros in both
    ],
)
def test_an_sqnr_on_one_side_only_is_no_comparison(before, now, sentence):
    baseline = make_figures(manifest(), contents(), validation(decode=proved("decode", before)))
    record = validation(decode=proved("decode", now))
    told = failures({}, record=record, baseline=baseline, own={"decode": {"max_sqnr_drop": 3}})
    assert told == ([f"{sentence}; `doit baseline asr` accepts that"] if sentence else [])


def test_what_is_not_known_fails():
    results = check_gates(
        settings({"max_planned_memory": "1kB", "max_latency_ratio": 2, "max_sqnr_drop": 1}),
        manifest(),
        baseline=BASELINE,
    )
    told = failed_gates(results)
    assert all(not result["ok"] and result["figure"] is None for result in results)
    assert "decode: its latency was not measured, and max_latency_ratio limits it" in told
    assert "decode: its SQNR was not measured, and max_sqnr_drop limits its drop" in told
    assert (
        "decode: its planned memory is unknown, since there is no contents.json; "
        "`doit -a lower:asr` makes it" in told
    )


def test_what_this_machine_cannot_run_is_said_not_to_be_checked():
    record = validation(decode=proved("decode", not_run="VulkanBackend: no device"))
    results = check_gates(
        settings({}, decode={"max_latency_ratio": 2, "max_sqnr_drop": 1}),
        manifest(),
        contents(),
        record,
    )
    assert failed_gates(results) == []
    assert [result["sentence"] for result in results] == [
        f"decode: {gate} was not checked, since it did not run: VulkanBackend: no device"
        for gate in ("max_latency_ratio", "max_sqnr_drop")
    ]


def estimated(*estimates, partitions=None):
    """Return a manifest in which each method has these estimates."""
    of_npu = {"EthosUBackend": partitions or len(estimates)}
    method = delegation(8, {}, estimates=list(estimates), partitions=of_npu)
    return lowered(method, method)


TWO = estimate(9000, sram=2000), estimate(12_000, sram=1500)


@pytest.mark.parametrize(
    ("gates", "sentences"),
    [
        ({"max_npu_cycles": 21_000, "max_npu_sram": 2000}, []),
        (
            {"max_npu_cycles": 20_999},
            [
                f"{method}: takes 21,000 cycles according to vela, at most 20,999 allowed; "
                "delegate 1: 12,000, delegate 0: 9,000"
                for method in ("decode", "encode")
            ],
        ),
        (
            {"max_npu_sram": "1.9kB"},
            [
                f"{method}: uses 2,000 bytes of SRAM according to vela, at most 1,900 allowed; "
                "delegate 0: 2,000, delegate 1: 1,500"
                for method in ("decode", "encode")
            ],
        ),
    ],
)
def test_cycles_are_of_all_delegates_and_sram_is_of_the_greatest(gates, sentences):
    assert failures(gates, estimated(*TWO)) == sentences


def test_what_fell_off_the_npu_does_not_hold_its_gates():
    gates = {"max_npu_cycles": 10**9, "max_npu_sram": "1GB"}
    told = failures(gates, lowered())
    assert told[0] == (
        "decode: max_npu_cycles limits an estimate, but no compiler of its delegates made one: it "
        "is lowered to XnnpackBackend; vela makes them for EthosUBackend"
    )
    assert len(told) == 4
    nothing = estimated(*TWO)
    nothing["methods"]["decode"]["delegation"] = delegation(0, {"aten.add.Tensor": 3})
    told = failures(gates, nothing)
    assert len(told) == 2 and all("it is lowered to no backend" in sentence for sentence in told)


def test_a_delegate_without_an_estimate_leaves_cycles_unknown():
    told = failures({"max_npu_cycles": 10**9}, estimated(*TWO, partitions=3))
    assert told[0] == (
        "decode: 1 of 3 partitions of EthosUBackend have no estimate, which max_npu_cycles limits"
    )


def test_a_method_without_partitioners_on_purpose_has_no_npu():
    build = estimated(*TWO)
    build["methods"]["decode"]["delegation"] = delegation(0, {"aten.add.Tensor": 3})
    build["methods"]["decode"]["lowering"]["partitioners"] = []
    assert failures({"max_npu_cycles": 10**9}, build) == []
    assert failures({}, build, own={"decode": {"max_npu_cycles": 10**9}}) != []


def test_a_method_has_gates_of_its_own():
    own = {"decode": {"min_delegated_nodes": 0.95}, "encode": {"min_delegated_nodes": 0}}
    (sentence,) = failures({"min_delegated_nodes": 1}, own=own)
    assert sentence.startswith("decode: 90.0 % of nodes delegated, at least 95.0 % required")


def test_kernels_of_a_backend_count_as_delegated():
    kernels = {"kernels": {"CortexM": {"cortex_m.add": 5}}, "nodes": 10, "operators": 2}
    build = lowered(delegation(5, {}, **kernels))
    assert failures({"min_delegated_nodes": 0.9}, build=build) == []


def test_a_share_of_nodes_is_a_number_or_a_percentage():
    limits = [settings({"min_delegated_nodes": limit}) for limit in (0.9, "90%", "90 %")]
    assert [limit["gates"]["min_delegated_nodes"] for limit in limits] == [0.9] * 3


def test_without_contents_segments_are_those_of_the_objects():
    blob = {"digest": "d" * 64, "size": 300}
    named = {"key": "w", "blob": {"digest": "e" * 64, "size": 150}}
    parts = {"constants": [blob], "external_constants": [], "delegates": [], "named": [named]}
    parts["named_external"] = {}
    units = {"encode": {"parts": parts}, "decode": {"parts": parts}}
    figures = make_figures(manifest(objects=units))
    assert figures["segments"] == {"constants": 300, "named_data": 150, "program": 550}
    told = check_gates(settings({"max_size": 900}), manifest(objects=units))
    assert told[0]["sentence"].endswith("program 550, constants 300, named_data 150")


@pytest.mark.parametrize(
    ("gates", "told"),
    [
        ({"max_size_growth": "two"}, "must be a share such as 0.02 or 2%"),
        ({"max_size_growth": -0.1}, "must be a share such as 0.02 or 2%"),
        ({"max_delegation_drop": True}, "must be a share such as 0.02 or 2%"),
        ({"min_delegated_ops": "101%"}, "must be at most 1"),
        ({"min_delegated_nodes": "most"}, "must be a number"),
        ({"max_sqnr_drop": -1}, "must be at least 0"),
        ({"max_latency_ratio": 0}, "must be more than 0"),
        ({"max_npu_cycles": 0}, "must be at least 1"),
        ({"max_npu_sram": "much"}, "must be a size such as 40MB"),
        ({"max_planned_memory": "much"}, "must be a size such as 40MB"),
        ({"allow_portable_ops": "aten.add"}, "must be a list"),
        ({"allow_portable_ops": ["aten add"]}, "must be an operator such as"),
        ({"max_growth": 1}, "unknown key 'max_growth'; did you mean 'max_size_growth'?"),
    ],
    ids=str,
)
def test_mistakes_are_told(gates, told):
    with pytest.raises(ConfigErrors, match=r"validate\.gates") as mistakes:
        settings(gates)
    assert told in str(mistakes.value)


def test_a_methods_gates_are_not_the_packages():
    with pytest.raises(ConfigErrors, match=r"methods\.decode\.gates: unknown key 'max_size'"):
        settings({}, decode={"max_size": 1})


def test_the_place_of_a_gate_is_where_it_was_written(tmp_path):
    folder = tmp_path / "configs"
    folder.mkdir()
    (folder / "_base.yaml").write_text("validate:\n  gates:\n    max_size: 1MB\n")
    (folder / "asr.yaml").write_text(
        "extends: _base\nmodel: asr\nmethods: {encode: {partitioners: []}}\nvalidate:\n"
        "  methods:\n    encode:\n      gates: {max_sqnr_drop: 3}\n"
    )
    found = read_configs(folder)
    assert find_places(found.configs["asr"], found.documents["asr"]) == {
        "methods.encode": "configs/asr.yaml:3",
        "validate.gates": "configs/_base.yaml:2",
        "validate.gates.max_size": "configs/_base.yaml:3",
        "validate.methods": "configs/asr.yaml:5",
        "validate.methods.encode.gates": "configs/asr.yaml:7",
        "validate.methods.encode.gates.max_sqnr_drop": "configs/asr.yaml:7",
    }


def test_what_is_measured_does_not_depend_on_gates_and_baseline():
    def key(baseline=None, gates=(("max_size", 1),), in_ci=False, **validate):
        data = {
            "model": "asr",
            "methods": {"encode": {"partitioners": []}, "decode": {"partitioners": []}},
            "validate": {"gates": dict(gates), **validate},
        }
        config = parse_config("asr", data, "asr.yaml")
        inputs = ValidateInputs(config, {}, {}, baseline=baseline, in_ci=in_ci)
        return validate_action(inputs).key

    growth = {"max_size_growth": 0.1}
    assert key(gates=growth, in_ci=True) != key(gates=growth)
    assert key(in_ci=True) == key()  # none of these needs a baseline
    one, own = key(), {"decode": {"gates": {"max_sqnr_drop": 3}}}
    others = [key("f" * 64), key(gates=()), key(methods=own)]
    assert all(each["measured"] == one["measured"] and each != one for each in others)
    assert key(atol=0.5)["measured"] != one["measured"]
    assert key(methods={"decode": {"atol": 0.5}})["measured"] != one["measured"]


def test_shares_may_be_written_as_percentages():
    gates = settings({"max_size_growth": "2%", "max_delegation_drop": "0.5 %"})["gates"]
    assert gates["max_size_growth"] == 0.02 and gates["max_delegation_drop"] == 0.005
    gates = settings({"max_latency_growth": "10%", "max_memory_growth": {"native": "5%"}})["gates"]
    assert gates["max_latency_growth"] == 0.1 and gates["max_memory_growth"] == {"native": 0.05}


FAMILY = {
    "asr": {"asr.pte": ("a" * 64, 100), "base.ptd": ("b" * 64, 5000)},
    "chat": {"chat.pte": ("c" * 64, 300), "base.ptd": ("b" * 64, 5000)},
}


@pytest.mark.parametrize(
    ("gate", "size"), [("max_family_size", 5400), ("max_added_size", 100), ("max_size", 5100)]
)
def test_sizes_of_a_family_count_what_is_shared_once(gate, size):
    files = {name: {"digest": each, "size": n} for name, (each, n) in FAMILY["asr"].items()}
    for limit in (size - 1, size):
        (record,) = check_gates(settings({gate: limit}), manifest(files=files), family=FAMILY)
        assert (record["figure"], record["ok"]) == (size, limit == size), record
    if gate != "max_size":
        (record,) = check_gates(settings({gate: size}), manifest(files=files))
        assert not record["ok"] and "has no family" in record["sentence"]


def test_the_size_of_a_family_is_unknown_until_all_its_packages_are_built():
    settings_of = settings({"max_family_size": 10**6})
    (record,) = check_gates(settings_of, manifest(), family={**FAMILY, "code": {}})
    assert not record["ok"] and record["figure"] is None
    assert record["sentence"].endswith("since these aren't built: code")
