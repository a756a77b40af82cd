"""All damages by name."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random

from . import operators, structure, weights
from .parts import Damage, Parts
from .samples import SAMPLES, Files

_OF_PARTS: dict[str, Callable[[Parts, Random], Damage | None]] = {
    **{
        f"{change}_in_{place}": partial(weights.damage_weight, place=place, change=change)
        for place in weights.PLACES
        for change in weights.CHANGES
    },
    **{
        function.__name__: function
        for function in (
            operators.replaced,
            operators.relu_to_gelu,
            operators.operands_swapped,
            operators.skipped,
            operators.scalar_changed,
            operators.delegate_of_another_method,
            operators.delegate_of_another_partition,
            operators.delegate_arguments_swapped,
            operators.xnnpack_replaced,
            operators.xnnpack_operands_swapped,
            operators.xnnpack_range_lost,
            operators.add_sub_line,
            operators.scale,
            operators.zero_point,
            operators.scales_permuted,
            operators.xnnpack_scale,
            operators.xnnpack_zero_point,
            operators.xnnpack_scales_permuted,
            operators.jump_target,
            operators.condition_inverted,
            structure.output_dropped,
            structure.outputs_reordered,
            structure.outputs_of_two_shapes_reordered,
            structure.output_aliased,
            structure.input_returned,
            structure.inputs_swapped,
            structure.declared_dtype,
            structure.declared_size,
            structure.dim_order,
            structure.dim_order_inside,
            structure.method_renamed,
            structure.methods_swapped,
            structure.method_missing,
            structure.method_extra,
            structure.constant_method,
            structure.initial_state,
            structure.initial_state_lost,
            structure.write_back_removed,
            structure.state_split,
            structure.shared_state_split,
            structure.memory_too_small,
            structure.memory_overlapping,
        )
    },
}
DAMAGES = (*_OF_PARTS, *structure.OF_FILES)


def damaged(sample: str, damage: str, seed: int) -> tuple[Files, Damage] | None:
    """A sample's package with one damage, and what was done to it; None where the sample has
    nothing that it can be done to."""
    files = SAMPLES[sample]().files
    random = Random(f"{sample}/{damage}/{seed}")
    if damage in structure.OF_FILES:
        return structure.OF_FILES[damage](files, random)
    parts = Parts.of(files)
    done = _OF_PARTS[damage](parts, random)
    return (parts.files(), done) if done is not None else None
