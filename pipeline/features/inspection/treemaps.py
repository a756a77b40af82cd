"""Treemaps of a package's bytes: by kind of storage, dtype, method and module."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from pipeline.report.colours import LEFT, colour_of
from pipeline.report.elements import Chart, Json
from pipeline.store.errors import listed
from pipeline.store.sizes import human_size

KINDS = {
    "program": "program",
    "constants": "constants",
    "delegate": "delegates",
    "named_data": "named data",
    "mutable": "initial state",
    "padding": "padding",
}
_MOST_TILES = 120  # per group; the others share one tile
_SHOWN = 0.995  # of a group's bytes; its smallest pieces share one tile
_SMALL = 0.005  # of the package; a smaller group is one tile
_MOST_GROUPS = 8  # with a colour of their own
_MOST_METHODS = 3  # named in the group of a tile
_NO_TENSORS = "no tensors"


def draw_contents(contents: Json) -> Chart | None:
    """Return a treemap of a package's contents, with three more views, or None if it is empty."""
    if not contents["segments"]:
        return None
    pieces = list(_list_pieces(contents))
    grouped = {
        "dtype": ("By dtype, as stored", _dtype_of),
        "method": ("By the methods that use them", _methods_of),
        "module": ("By module", _make_module_of(pieces)),
    }
    views: list[Chart] = []
    for view, (about, group_of) in grouped.items():
        groups = [group_of(piece) for piece in pieces]
        colours = _choose_colours(pieces, groups)
        views.append(_draw(view, about, pieces, groups, colours))
    segments = [
        {**segment, "name": segment["name"] or KINDS.get(segment["kind"], "")}
        for segment in contents["segments"]
    ]
    kinds = [KINDS.get(segment["kind"], segment["kind"]) for segment in segments]
    colours = {name: colour_of(kind) for kind, name in KINDS.items()}
    about = "By what they are in the files"
    return replace(_draw("storage", about, segments, kinds, colours), views=views)


def _list_pieces(contents: Json) -> Iterator[Json]:
    """Yield the tensors as they are stored, and the remaining bytes of each segment.

    The size of a tensor within a delegate's payload is unknown, so the whole payload is one piece.
    """
    rest: Counter[tuple[str, str]] = Counter()
    for segment in contents["segments"]:
        if segment["kind"] in ("constants", "named_data", "mutable"):
            rest[segment["file"], segment["kind"]] += segment["size"]
        else:
            yield {**segment, "name": segment["name"] or KINDS[segment["kind"]]}
    for tensor in contents["tensors"]:
        if (tensor.get("file"), tensor.get("where")) in rest:
            rest[tensor["file"], tensor["where"]] -= tensor["size"]
            yield {**tensor, "kind": tensor["where"]}
    for (_, kind), size in rest.items():
        if size > 0:
            name = f"alignment of {KINDS[kind]}"
            yield {"name": name, "kind": kind, "size": size, "methods": []}


def _dtype_of(piece: Json) -> str:
    return piece.get("dtype") or _NO_TENSORS


def _methods_of(piece: Json) -> str:
    return listed(piece["methods"], _MOST_METHODS) or "all methods"


def _make_module_of(pieces: Iterable[Json]) -> Callable[[Json], str]:
    """Return a function that names the module of a piece.

    It goes as deep into the modules as still leaves each group a colour of its own.
    """
    paths: list[Sequence[str]] = []
    for piece in pieces:
        if piece.get("dtype") and piece["name"]:
            paths.append(_module_path(piece))
    deepest = max(map(len, paths), default=0)
    depth = 1
    while depth < deepest:
        if len({tuple(path[: depth + 1]) for path in paths}) > _MOST_GROUPS:
            break
        depth += 1

    def module_of(piece: Json) -> str:
        if not piece.get("dtype"):
            return _NO_TENSORS
        return ".".join(_module_path(piece)[:depth]) or "no module"

    return module_of


def _module_path(piece: Json) -> Sequence[str]:
    """Return the parts of the qualified name of a tensor's module, taken from its first name."""
    name = piece["name"].partition(",")[0]
    return name.split(".")[:-1]


def _choose_colours(pieces: Iterable[Json], groups: Iterable[str]) -> Mapping[str, str]:
    """Return a colour for each of the largest groups."""
    totals = Counter[str]()
    for piece, group in zip(pieces, groups, strict=True):
        if group != _NO_TENSORS:
            totals[group] += piece["size"]
    colours: dict[str, str] = {}
    for place, (group, _) in enumerate(totals.most_common(_MOST_GROUPS)):
        colours[group] = f"var(--c{place})"
    return colours


def _draw(
    view: str,
    about: str,
    pieces: Sequence[Json],
    groups: Sequence[str],
    colours: Mapping[str, str],
) -> Chart:
    members: dict[str, list[Json]] = {}
    for piece, group in zip(pieces, groups, strict=True):
        members.setdefault(group, []).append(piece)
    whole = sum(piece["size"] for piece in pieces)
    totals = Counter[str]()
    tiles: list[Json] = []
    for group, pieces_of_group in members.items():
        totals[group] = sum(piece["size"] for piece in pieces_of_group)
        colour = colours.get(group, LEFT)
        shown = totals[group] * _SHOWN
        if totals[group] < whole * _SMALL:
            shown = 0
        for tile in _make_tiles(group, pieces_of_group, shown):
            tiles.append({**tile, "group": group, "colour": colour})
    legend: list[tuple[str, str]] = []
    for group, total in totals.most_common(_MOST_GROUPS + 1):
        words = f"{group} {human_size(total)}"
        legend.append((words, colours.get(group, LEFT)))
    return Chart(
        "Bytes of the package.",
        f"{about}. Hover or tap for names.",
        legend,
        f"Bytes of the package by {view}",
        "treemap",
        {"tiles": tiles},
        view=view,
    )


def _make_tiles(group: str, pieces: Sequence[Json], shown: float) -> Iterator[Json]:
    """Yield the tiles of a group.

    The largest pieces get a tile each until `shown` bytes are covered; one tile stands for the
    rest.
    """
    ranked = sorted(pieces, key=lambda piece: -piece["size"])
    large: list[Json] = []
    for piece in ranked[:_MOST_TILES]:
        if shown <= 0:
            break
        shown -= piece["size"]
        large.append(piece)
    # A tile for `1 more` would be just as large as the piece itself.
    if len(ranked) - len(large) == 1:
        large = ranked
    for piece in large:
        amount = f"{human_size(piece['size'])} ({piece['size']:,} bytes)"
        users = ""
        if piece["methods"]:
            users = f" of {', '.join(piece['methods'])}"
        description = f"{piece['name'] or 'not known'}{users}: {amount}"
        yield {"name": piece["name"], "size": piece["size"], "description": description}
    if others := ranked[len(large) :]:
        total = sum(piece["size"] for piece in others)
        title = f"{len(others)} more"
        description = f"{title} of {group}: {human_size(total)}"
        yield {"name": title, "size": total, "description": description}
