"""Messages on mistakes in the options of each catalogue entry: all at once, with the known names
and a likely correction."""

import re
from typing import Literal, get_args, get_origin

import pytest
import yaml

from pipeline.backends import BACKENDS, QUANTIZERS
from pipeline.backends.options import OneOf
from tests.support.configs import read_configs

PARTITIONERS = {f"{name} partitioner": b.options for name, b in BACKENDS.items() if b.lowers}
QUANTIZER = {f"{name} quantizer": entry.options for name, entry in QUANTIZERS.items()}
ENTRIES = PARTITIONERS | QUANTIZER


def reported(folder, entry, *written):
    """Return the problems of a config that has one method per set of options.

    They are keyed by method and path inside the options.
    """
    name, _, kind = entry.rpartition(" ")
    methods = {
        f"m{number}": {"partitioners": [{name: options}]}
        if kind == "partitioner"
        else {"partitioners": [], "quantize": {"quantizer": name, **options}}
        for number, options in enumerate(written)
    }
    folder.mkdir(exist_ok=True)
    text = yaml.safe_dump({"model": "any", "methods": methods}, sort_keys=False)
    (folder / "package.yaml").write_text(text)
    found = read_configs(folder).problems.get("package", ())
    inside = f".partitioners[0].{name}" if kind == "partitioner" else ".quantize"
    by_place = {}
    for problem in found:
        method, _, rest = problem.path.removeprefix("methods.").partition(inside)
        by_place.setdefault((int(method[1:]), rest.removeprefix(".")), []).append(problem)
    return by_place


def required(model, but=()):
    return {n for n, f in model.model_fields.items() if f.is_required()} - {"quantizer", *but}


def list_options(entry):
    return [name for name in ENTRIES[entry].model_fields if name != "quantizer"]


def literals(annotation):
    """Return the members of every enumeration in an option's type."""
    if isinstance(annotation, OneOf):
        return annotation.names
    if get_origin(annotation) is Literal:
        return list(get_args(annotation))
    return [member for part in get_args(annotation) for member in literals(part)]


def enumerated(entry):
    """Return the options that are members of enumerations, or lists of such members."""
    for name in list_options(entry):
        field = ENTRIES[entry].model_fields[name]
        found = [each for part in (field.annotation, *field.metadata) for each in literals(part)]
        if get_origin(field.annotation) is not dict and found:
            yield name, found


@pytest.mark.parametrize("entry", ENTRIES)
def test_every_misspelt_option_is_reported_with_the_one_that_was_meant(tmp_path, entry):
    names = [*list_options(entry), *(["modules"] if entry in PARTITIONERS else [])]
    wrong = {f"{name[:-1]}{name[-1] * 2}": name for name in names}
    found = reported(tmp_path / "configs", entry, dict.fromkeys(wrong, "any"))
    unknown = [str(problem) for problem in found.pop((0, "")) if "unknown" in problem.what]
    assert len(unknown) == len(wrong)
    for problem, (misspelt, meant) in zip(unknown, wrong.items(), strict=True):
        assert f"unknown key '{misspelt}'; did you mean '{meant}'? known: " in problem
    assert {path for _, path in found} == required(ENTRIES[entry])


@pytest.mark.parametrize("entry", ENTRIES)
def test_every_wrong_type_is_reported(tmp_path, entry, monkeypatch):
    """There are two values, since no single one is wrong for every option."""
    monkeypatch.setattr("pipeline.config.parser._MOST_PROBLEMS", 1000)
    names = list_options(entry)
    found = reported(
        tmp_path / "configs",
        entry,
        dict.fromkeys(names, 0.5),
        {name: {"no": "option"} for name in names},
    )
    for name in names:
        problems = [
            str(problem)
            for (_, path), several in found.items()
            if path == name or path.startswith((f"{name}.", f"{name}["))
            for problem in several
        ]
        assert problems, name
        for problem in problems:
            assert re.search(r": is .*, must be |unknown key 'no'; known: ", problem), problem


@pytest.mark.parametrize("entry", [e for e in ENTRIES if any(enumerated(e))])
def test_every_wrong_member_is_reported_with_the_nearest(tmp_path, entry):
    members = dict(enumerated(entry))
    wrong = {n: 77 if isinstance(own[0], int) else f"{own[0]}_" for n, own in members.items()}
    lists = {n for n in members if "tuple" in str(ENTRIES[entry].model_fields[n].annotation)}
    found = reported(
        tmp_path / "configs",
        entry,
        {name: [value] if name in lists else value for name, value in wrong.items()},
    )
    for name, own in members.items():
        (problem,) = found[0, f"{name}[0]" if name in lists else name]
        if own == [False]:
            continue  # a nearby message reports it: no dynamic quantization
        hint = "" if isinstance(own[0], int) else f"did you mean '{own[0]}'? "
        assert f", must be one of the known values; {hint}known: " in str(problem)
        assert str(own[0]) in problem.known


BESIDE = "must not contain `batches`, since it observes no inputs"
DYNAMIC = ({"dynamic": True}, "must be false: this quantizer doesn't support dynamic quantization")
IMPOSSIBLE = {
    "coreml partitioner": (
        {"take_over_constant_data": False, "lower_full_graph": True},
        "needs take_over_constant_data: true",
    ),
    "coreml quantizer": ({"activation_dtype": "float32", "batches": 2}, BESIDE),
    "cortex_m partitioner": (
        {"cpu": "M0", "isa": "MVE"},
        "must be one of those that M0 has: SCALAR",
    ),
    "cortex_m quantizer": DYNAMIC,
    "ethos-u partitioner": (
        {"target": "ethos-u55-128", "system_config": "Ethos_U85_SYS_Flash_Low"},
        "must be a system with the target's NPU",
    ),
    "ethos-u quantizer": (
        {"target": "ethos-u55-128", "softmax": "masked"},
        "must be stable for this target",
    ),
    "openvino quantizer": ({"mode": "int8_sym", "group_size": 64}, "which mode int8_sym does not"),
    "torchao quantizer": ({"scheme": "int4_weight_only", "batches": 2}, BESIDE),
    "tosa partitioner": (
        {"tosa_spec": "TOSA-1.0+INT+u55", "softmax": "masked"},
        "must be stable for this target",
    ),
    "tosa quantizer": (
        {"tosa_spec": "TOSA-1.0+INT", "activations": "int16"},
        "must be int8 unless tosa_spec has the extension int16",
    ),
    "vgf partitioner": ({"compiler_flags": ["--output=x"]}, "must be one of the known values"),
    "vgf quantizer": (
        {"tosa_spec": "TOSA-1.0+INT", "activations": "int16"},
        "must be int8 unless tosa_spec has the extension int16",
    ),
    "vulkan partitioner": (
        {"texture_limits": [1, 2, 3], "small_texture_limits": True},
        "can't be combined with texture_limits",
    ),
    "vulkan quantizer": ({"batches": 2}, BESIDE),
    "xnnpack quantizer": ({"dynamic": True, "act_qmin": -7}, "must not contain `act_qmin`"),
}


def test_every_entry_with_rules_has_an_impossible_combination_here():
    ruled = {
        entry
        for entry, model in ENTRIES.items()
        if model.__pydantic_decorators__.field_validators
        or model.__pydantic_decorators__.model_validators
    }
    assert ruled <= set(IMPOSSIBLE) <= set(ENTRIES)


@pytest.mark.parametrize("entry", IMPOSSIBLE)
def test_impossible_combinations_are_reported_beside_other_mistakes(tmp_path, entry):
    options, says = IMPOSSIBLE[entry]
    found = reported(tmp_path / "configs", entry, {**options, "zzz": 1}, {"yyy": 1})
    lines = [str(problem) for several in found.values() for problem in several]
    assert sum(says in line for line in lines) == 1, lines
    assert sum("unknown key 'zzz'" in line or "unknown key 'yyy'" in line for line in lines) == 2


def test_alone_an_impossible_combination_is_the_only_mistake(tmp_path):
    for entry, (options, says) in IMPOSSIBLE.items():
        found = reported(tmp_path / entry, entry, options)
        ((problem,),) = found.values()
        assert says in str(problem)
