"""Names close to names in a model."""

import pytest
from torch import nn

from pipeline.features.remedies.near_names import suggest_name


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(2, 2)
        self.register_buffer("positions", None)


class Strange:
    def __getattr__(self, name):
        raise AttributeError(name)

    def __dir__(self):
        raise RuntimeError


def call_misspelt():
    return suggest_nmae  # noqa: F821


CALLS = {
    "a submodule": (lambda: Model().haed, "head"),
    "a buffer": (lambda: Model().postions, "positions"),
    "a module of Python": (lambda: nn.Liner, "Linear"),
    "a global": (call_misspelt, "suggest_name"),
    "nothing near": (lambda: Model().encoder, ""),
    "an object that lists nothing": (lambda: Strange().name, ""),
    "another error": (lambda: {}["haed"], ""),
}


@pytest.mark.parametrize("name", CALLS)
def test_the_near_name_is_suggested(name):
    call, near = CALLS[name]
    with pytest.raises(Exception) as raised:
        call()
    assert suggest_name(raised.value) == (f"; did you mean '{near}'?" if near else "")
