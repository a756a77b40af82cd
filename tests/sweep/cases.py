"""Helpers to make cases: a case is a function that makes an exported program."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.export import ExportedProgram, export

CASES: dict[str, Callable[[], ExportedProgram]] = {}
KINDS = sorted(path.stem[6:] for path in Path(__file__).parent.glob("cases_*.py"))


def load_cases(kinds: list[str] = KINDS) -> dict[str, Callable[[], ExportedProgram]]:
    """Return the cases of some kinds, by default of all, as functions keyed by name."""
    torch.manual_seed(0)  # layers of cases are made on import
    for kind in kinds:
        importlib.import_module(f"tests.sweep.cases_{kind}")
    return CASES


def program(make: Callable[[], ExportedProgram]) -> Callable[[], ExportedProgram]:
    """Turn a function that returns an exported program into a case."""
    if make.__name__ in CASES:
        raise ValueError(f"two cases are called {make.__name__}")
    CASES[make.__name__] = make
    return make


def method(
    *args: Any, kwargs: dict[str, Any] | None = None, **options: Any
) -> Callable[[Callable[..., Any]], Callable[[], ExportedProgram]]:
    """Turn a `forward` into a case, exported with these arguments.

    Tensors and modules among the options become buffers and modules of `self`; the other options
    are for `export_of`.
    """
    members = {
        n: each for n, each in options.items() if isinstance(each, (torch.Tensor, nn.Module))
    }
    options = {name: each for name, each in options.items() if name not in members}

    def decorate(forward: Callable[..., Any]) -> Callable[[], ExportedProgram]:
        def make() -> ExportedProgram:
            return export_of(module(forward, **members), args, kwargs, **options)

        make.__name__ = forward.__name__
        return program(make)

    return decorate


def module(forward: Callable[..., Any], **members: torch.Tensor | nn.Module) -> nn.Module:
    """Return a module with this `forward`; tensors become its buffers."""
    made = type("Case", (nn.Module,), {"forward": forward})()
    for name, member in members.items():
        if isinstance(member, torch.Tensor):
            made.register_buffer(name, member)
        else:
            made.add_module(name, member)
    return made.eval()


def export_of(
    made: nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any] | None = None,
    dynamic: Any = None,
    train: bool = False,
    **options: Any,
) -> ExportedProgram:
    """Export a module. Unless `train`, its parameters need no gradients and none are recorded."""
    if not train:
        made = made.requires_grad_(False)
    with torch.set_grad_enabled(train):
        return export(made, args, kwargs, dynamic_shapes=dynamic, **options)


def randn(*shape: int) -> torch.Tensor:
    """Return random float32 numbers of a shape, the same on each call."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1))


def linear(inputs: int = 8, outputs: int = 8) -> nn.Linear:
    """Return a linear layer, the same on each call."""
    torch.manual_seed(0)
    return nn.Linear(inputs, outputs)
