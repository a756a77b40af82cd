"""Which methods form a compile unit: those passed to a backend together."""

import pytest

from pipeline.config.units import merge_groups
from tests.support.configs import parse_config

SHARED = {"emit": {"memory_planning": {"share_mutable_buffers": True}}}


def units(methods, **more):
    written = {name: {"partitioners": own} for name, own in methods.items()}
    return parse_config("p", {"model": "m", "methods": written, **more}, "p.yaml").units


def coreml(strategy):
    return {"coreml": {"multimethod_weight_sharing_strategy": strategy}}


JOINED, APART = coreml("positional"), coreml("disabled")


@pytest.mark.parametrize(
    ("methods", "expected"),
    [
        ({"a": ["xnnpack"], "b": []}, [("a",), ("b",)]),
        ({"a": ["coreml"], "b": ["xnnpack"], "c": [JOINED]}, [("a", "c"), ("b",)]),
        ({"a": ["coreml"], "b": ["xnnpack"]}, [("a",), ("b",)]),
        ({"a": [APART], "b": [APART], "c": [APART, "xnnpack"]}, [("a",), ("b",), ("c",)]),
        # The strategy of the first method that has a partition counts, but nobody knows yet which
        # it is.
        ({"a": [APART], "b": [JOINED]}, [("a", "b")]),
        # ExecuTorch lowers in turns, and Core ML sees both methods in none of them.
        ({"a": ["xnnpack", "coreml"], "b": ["coreml"]}, [("a",), ("b",)]),
        ({"a": ["xnnpack", "coreml"], "b": ["xnnpack", "coreml"]}, [("a", "b")]),
        ({"a": [APART, JOINED], "b": [APART], "c": ["xnnpack", JOINED]}, [("a", "c"), ("b",)]),
    ],
)
def test_methods_that_a_backend_sees_at_once_are_a_unit(methods, expected):
    assert units(methods) == expected


def test_methods_that_share_their_state_are_a_unit():
    assert units({"a": [APART], "b": [], "c": ["xnnpack"]}, **SHARED) == [("a", "b", "c")]


def test_groups_with_a_common_name_are_one():
    groups = [{"b", "c"}, {"d", "e"}, {"c", "d"}, {"f"}]
    assert merge_groups("afedcb", groups) == [("e", "d", "c", "b"), ("a",), ("f",)]
