"""Outputs whose shape or dtype is another one than the accepted one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pipeline.store.json_diff import diff_names


def find_changed_outputs(
    before: Mapping[str, str], after: Mapping[str, str]
) -> Iterator[tuple[str, str, str]]:
    """Yield the name of each output that changed, and its shape before and after, "none" where
    there is none. As many outputs as before are paired by place, since names may change, too.

    Args:
        before: dtype and sizes by name, as `validate.figures.output_shapes` gives them.
    """
    if len(before) == len(after):
        before = dict(zip(after, before.values(), strict=True))
    for (name,), old, new in diff_names(before, after, "none"):
        yield name, old, new
