"""Selects sub-modules of a program by the names in a config, and checks these names.

`decoder.layers.0` names a module, and `decoder.layers` includes all modules below it. A bare name
means one call: a module that is called more than once is named call by call, as `shared@0` and
`shared@1` in the order of the program, or as `shared@*` for all calls. `!head` leaves a module out
of the modules that other names select or, without such names, out of the whole program. Importing
this file doesn't import torch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pipeline.program.module_paths import Frame, Outline, module_frames
from pipeline.store.errors import did_you_mean

if TYPE_CHECKING:
    from torch.fx import Node

_ALL = "*"
_EXCEPT = "!"
_MOST_SUGGESTIONS = 10


def stands_in(node: Node, names: Sequence[str]) -> bool:
    """Return whether a node is in one of the named modules, and in none that `!` leaves out.

    If all names begin with `!`, a node only has to be in none of the modules that they leave out.
    """
    frames = module_frames(node)
    is_inside = bool(names) and all(name.startswith(_EXCEPT) for name in names)
    for name in names:
        base, call = _split(name)
        if any(_matches(frame, base, call) for frame in frames):
            if name.startswith(_EXCEPT):
                return False
            is_inside = True
    return is_inside


def _split(name: str) -> tuple[str, str | None]:
    base, mark, call = name.removeprefix(_EXCEPT).partition("@")
    return base, call if mark else None


def _matches(frame: Frame, base: str, call: str | None) -> bool:
    if call in (None, _ALL):
        return f"{frame.name}.".startswith(f"{base}.")
    return frame.name == base and str(frame.call) == call


def check_names(names: Sequence[str], outline: Outline) -> Iterator[tuple[str, str]]:
    """Yield what is wrong with each invalid module name, and a hint on how to fix it.

    A name is wrong if the outline has no such module or no such call of it, if the program computes
    nothing in the module, or if the name doesn't say which of several calls or aliases it means.
    """
    for name in names:
        base, call = _split(name)
        if base not in outline.modules:
            yield _explain_unknown_module(base, outline)
        elif not _computes(base, outline):
            yield _explain_idle_module(base, outline)
        else:
            yield from _find_wrong_calls(name, base, call, names, outline)


def _computes(module: str, outline: Outline) -> bool:
    """Return whether a module, or a module within it, computes anything."""
    return any(
        called == module or called.startswith(f"{module}.") for called in outline.calls
    )


def _explain_unknown_module(name: str, outline: Outline) -> tuple[str, str]:
    if name not in outline.tensors:
        hint = did_you_mean(name, outline.modules, _MOST_SUGGESTIONS)
        return f"no module '{name}' in the program", hint
    module = name.rpartition(".")[0]
    hint = "it belongs to the whole program"
    if module:
        hint = f"its module is '{module}'"
    return f"'{name}' is a {outline.tensors[name]}, not a module", hint


def _explain_idle_module(name: str, outline: Outline) -> tuple[str, str]:
    aliases = []
    for alias in _aliases(name, outline):
        if alias in outline.calls:
            aliases.append(f"'{alias}'")
    if aliases:
        hint = f"it is called as {' and '.join(aliases)}"
    else:
        hint = did_you_mean(name, outline.calls, _MOST_SUGGESTIONS)
    return f"the program computes nothing in module '{name}'", hint


def _aliases(name: str, outline: Outline) -> list[str]:
    """Return the names of a module and of the modules that share all of their weights with it."""
    aliases: list[str] = []
    for group in outline.same:
        if name in group:
            aliases += group
    return aliases


def _find_wrong_calls(
    name: str, base: str, call: str | None, names: Sequence[str], outline: Outline
) -> Iterator[tuple[str, str]]:
    calls = []
    for number in outline.calls.get(base, ()):
        calls.append(f"'{base}@{number}'")
    named = {_split(listed)[0] for listed in names}
    unnamed_aliases = [
        alias
        for alias in _aliases(base, outline)
        if alias in outline.calls and alias not in named
    ]
    if call is not None and not calls:
        yield f"'{name}': module '{base}' is not called itself", f"write '{base}'"
    elif call is not None and call != _ALL and f"'{name}'" not in calls:
        yield f"module '{base}' has no call '@{call}'", f"known: {', '.join(calls)}"
    elif call is None and len(calls) > 1:
        yield (
            f"module '{base}' is called {len(calls)} times, but a bare name means one call",
            f"name {', '.join(calls[:-1])} or {calls[-1]}, or '{base}@*' for all",
        )
    elif call is None and unnamed_aliases:
        shown = " and ".join(f"'{alias}'" for alias in unnamed_aliases)
        yield (
            f"module '{base}' shares all of its weights with {shown}, which is also called",
            f"name both, or '{base}@0' for this call alone",
        )
