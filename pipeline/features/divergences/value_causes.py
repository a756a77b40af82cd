"""Causes in values: weights, buffers, constants, random numbers, dtypes, the training mode."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import torch

from pipeline.features.divergences.branches import find_contexts
from pipeline.features.divergences.cause import Cause, call_of
from pipeline.features.divergences.difference import RunDifference, place_of
from pipeline.features.divergences.places import Place, name_class, name_module
from pipeline.features.divergences.statement_causes import explain_value
from pipeline.features.divergences.trace import Leaf, TraceEvent
from pipeline.program.module_paths import Frame
from pipeline.store.errors import plural

_DROPOUTS = frozenset(
    {"dropout", "native_dropout", "feature_dropout", "alpha_dropout", "bernoulli"}
    | {"feature_alpha_dropout", "_fused_dropout"}
)


def find_training_mode(difference: RunDifference) -> Cause | None:
    """Find a dropout or batch norm that only one of the runs executes in training mode."""
    program = difference.program
    reference = difference.reference
    for name, event in (("program", program), ("reference", reference)):
        if event is not None and _is_dropout(event):
            return Cause(
                _TRAINING_TEXT[name], call_of(event.site, difference), event.operator
            )
    if program is None or reference is None:
        return None
    match _training_flag(program), _training_flag(reference):
        case True, False:
            return Cause(_TRAINING_TEXT["program"])
        case False, True:
            return Cause(_TRAINING_TEXT["reference"])
    return None


_TRAINING_TEXT = {
    "program": "the program was exported in training mode, but the reference is in eval mode; call "
    ".eval() on the model before it is exported",
    "reference": "the reference is in training mode, but the program was exported in eval mode; "
    "call .eval() on the reference, or declare that the method samples",
}


def _is_dropout(event: TraceEvent[Any]) -> bool:
    if event.base not in _DROPOUTS:
        return False
    place = place_of(event.site)
    kind = ""
    if place.module is not None:
        kind = name_class(place.module)
    node = getattr(event.site, "target", "")
    # A `bernoulli` may be the model's own: only its surroundings tell.
    return "dropout" in f"{event.base} {place.function} {kind} {node}".lower()


def _training_flag(event: TraceEvent[Any]) -> bool | None:
    for name in ("training", "train", "use_input_stats"):
        if isinstance(event.scalars.get(name), bool):
            return bool(event.scalars[name])
    if event.base in ("native_batch_norm", "_native_batch_norm_legit"):
        return True
    return False if event.base == "_native_batch_norm_legit_no_training" else None


def find_weights(difference: RunDifference) -> Cause | None:
    """Find parameters and buffers whose values differ between the program and the module."""
    pairs = list(_weight_pairs(difference))
    if not pairs:
        return None
    program_leaf, reference_leaf = pairs[0]
    subject = f"{program_leaf.kind} '{program_leaf.name}'"
    if len(pairs) > 1:
        subject += f" (and {plural(len(pairs) - 1, 'other')})"
    place = place_of(reference_leaf.site or program_leaf.site)
    return Cause(_describe_weights(program_leaf, reference_leaf), None, subject, place)


def _describe_weights(program_leaf: Leaf[Any], reference_leaf: Leaf[Any]) -> str:
    if program_leaf.dtype != reference_leaf.dtype:
        dtype = _dtype(program_leaf.dtype)
        reference_dtype = _dtype(reference_leaf.dtype)
        return (
            f"is {dtype} in the program, {reference_dtype} in the reference; export the model with "
            "the dtype that it runs with"
        )
    if program_leaf.kind == "parameter":
        return (
            f"{_OTHER_VALUES}: the weights changed after the export, or come from another "
            "checkpoint; export again"
        )
    return f"{_OTHER_VALUES}: it changed after the export; reset it, or export again"


_OTHER_VALUES = "has different values in the program and in the reference"


def _weight_pairs(difference: RunDifference) -> Iterator[tuple[Leaf[Any], Leaf[Any]]]:
    """Yield pairs of same-named leaves, the program's and the reference's, if either diverges."""
    program = difference.comparison.program.leaves
    reference = difference.comparison.reference.leaves
    diverging = {id(leaf) for leaf in difference.program_leaves}
    diverging |= {id(leaf) for leaf in difference.reference_leaves}
    for value, partner in difference.comparison.pairs:
        program_leaf = program[value]
        reference_leaf = reference[partner]
        if program_leaf.kind not in ("parameter", "buffer"):
            continue
        if id(program_leaf) in diverging or id(reference_leaf) in diverging:
            yield program_leaf, reference_leaf


def find_attribute(difference: RunDifference) -> Cause | None:
    """Find a tensor that the reference keeps in an attribute that isn't a buffer."""
    for leaf in difference.reference_leaves:
        if leaf.kind == "attribute":
            text = (
                "the reference reads a plain attribute that its constructor or an earlier call "
                "set, whereas the program kept its value from tracing; register it as a buffer"
            )
            return Cause(text, None, f"tensor '{leaf.name}'", place_of(leaf.site))
    return None


def find_random_numbers(difference: RunDifference) -> Cause | None:
    """Find random numbers that one of the runs draws."""
    program = difference.program
    reference = difference.reference
    if reference is not None and reference.random:
        if difference.program_leaves:
            text = "in the program, the numbers that were drawn while tracing are a constant"
        else:
            text = "the reference draws random numbers"
        return Cause(f"{text}; pass them as an input, or register them as a buffer")
    if program is not None and program.random:
        return Cause(
            "the program draws random numbers; pass them as an input, or declare that the method "
            "samples"
        )
    return None


def find_fast_path(difference: RunDifference) -> Cause | None:
    """Find attention that eager modules compute in one operator, which is never exported."""
    event = difference.reference
    if event is None or event.base not in _FAST_PATHS:
        return None
    return Cause(
        "the reference uses PyTorch's fast path for attention, which isn't exported; to compare "
        "the same operators, call torch.backends.mha.set_fastpath_enabled(False)"
    )


_FAST_PATHS = frozenset(
    {"_transformer_encoder_layer_fwd", "_native_multi_head_attention"}
)


def find_dtype(difference: RunDifference) -> Cause | None:
    """Find results that differ in dtype."""
    event = difference.reference or difference.program
    if event is None:
        return None
    call = call_of(event.site, difference)
    for side, cast in (
        ("reference", difference.reference),
        ("program", difference.program),
    ):
        if cast is not None and _is_by_autocast(cast, side, difference):
            dtype = _dtype(cast.scalars.get("dtype"))
            text = f"only in the {side}, autocast computes in {dtype}"
            remedy = "export and run the reference under the same autocast"
            return Cause(
                f"{text}; {remedy}", call_of(cast.site, difference), cast.operator
            )
    program_dtype = _result_dtype(difference, True)
    reference_dtype = _result_dtype(difference, False)
    if (
        program_dtype is None
        or reference_dtype is None
        or program_dtype == reference_dtype
    ):
        return None
    if not _are_alike(difference):
        return None
    text = (
        f"computes in {_dtype(program_dtype)} in the program, "
        f"{_dtype(reference_dtype)} in the reference"
    )
    remedy = (
        "export with the dtype, default dtype and autocast that the reference runs with"
    )
    return Cause(f"{text}; {remedy}", call)


def _is_by_autocast(
    event: TraceEvent[Any], side: str, difference: RunDifference
) -> bool:
    """Return whether an operator casts because only one side computes under autocast there.

    Its line is in an autocast context, or only that side enters autocast and the line asks for no
    dtype.
    """
    if event.base != "_to_copy":
        return False
    if "autocast" in _contexts(difference):
        return True
    in_program, in_reference = (
        difference.comparison.program.autocasts,
        difference.comparison.reference.autocasts,
    )
    is_alone = in_program != in_reference and in_program == (side == "program")
    call = call_of(event.site, difference)
    asks = call is not None and _ASKS_FOR_DTYPE.search(call.frame.code)
    return is_alone and not asks


_ASKS_FOR_DTYPE = re.compile(
    r"\.(?:to|type|type_as|float|double|half|bfloat16|int|long|bool)\("
)


def _are_alike(difference: RunDifference) -> bool:
    """Return whether both operators have the same name."""
    program = difference.program
    reference = difference.reference
    return (
        program is not None and reference is not None and program.base == reference.base
    )


def _contexts(difference: RunDifference) -> str:
    """Return the texts of `with` statements and decorators around the diverging operators."""
    texts = []
    for place in difference.places():
        for call in place.calls if place is not None else ():
            texts.append(find_contexts(difference.path(call.frame), call.frame.line))
    return " ".join(texts)


def _result_dtype(difference: RunDifference, is_program: bool) -> Any:
    event = difference.program if is_program else difference.reference
    comparison = difference.comparison
    trace = comparison.program if is_program else comparison.reference
    if event is None or not event.writes:
        return None
    content = trace.values[event.writes[0]]
    return content and content.dtype


def find_constant(difference: RunDifference) -> Cause | None:
    """Find a tensor that was made while tracing, and is a constant of the program."""
    leaves = [
        leaf for leaf in difference.program_leaves if leaf.kind in ("constant", "")
    ]
    reference_leaves = [leaf for leaf in difference.reference_leaves if not leaf.kind]
    if not leaves and not reference_leaves:
        return None
    if reference_leaves and not leaves:
        return _describe_foreign(reference_leaves[0], difference)
    event = difference.reference
    site = (
        (reference_leaves or leaves)[0].site
        if reference_leaves or event is None
        else event.site
    )
    call = call_of(site, difference)
    text = f"it is a constant in the program: {explain_value(difference, call)}"
    return Cause(text, None, "a tensor that Python creates", place_of(site))


def _describe_foreign(leaf: Leaf[Any], difference: RunDifference) -> Cause:
    """Describe a tensor of the reference that no operator made and the program lacks."""
    place = place_of(leaf.site)
    if leaf.site is None:
        text = (
            "the reference computes it outside PyTorch, where nothing can be recorded"
        )
        return Cause(text, None, difference.labels[0], place)
    text = "the reference computes it outside PyTorch, and the program doesn't; compute it with "
    return Cause(
        f"{text}torch in the model, or pass it as an input", None, "a tensor", place
    )


def find_outside_work(difference: RunDifference) -> Cause | None:
    """Find work that a reference function does before or after it calls the model."""
    event = difference.reference
    if event is None:
        return None
    if place_of(event.site).module is not None:
        return None
    for module_event in difference.comparison.reference.events:
        module = _outermost_module(place_of(module_event.site))
        if module is None:
            continue
        if event.place < module_event.place:
            work = "transforms its inputs before it calls"
        else:
            work = "continues after calling"
        remedy = (
            "make that a part of the exported module, or leave it out of the reference"
        )
        text = f"the reference {work} {name_module(module)}; {remedy}"
        return Cause(text, call_of(event.site, difference))
    return None


def _outermost_module(place: Place) -> Frame | None:
    for call in place.calls:
        if call.module:
            return call.module
    return place.module


def _dtype(dtype: torch.dtype | None) -> str:
    return str(dtype).removeprefix("torch.")
