"""Changes archives at random, and checks that each gives a one-line error or the program.

    python -m tests.trust.mutations COUNT [FIRST_SEED]

tries COUNT mutations of the archives of tests/trust/test_archives.py in a process that is restarted
if it dies, and prints how often each outcome occurred.
"""

from __future__ import annotations

import copy
import io
import json
import random
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import zipfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_SECONDS = 30  # per attempt, far more than one takes
_KINDS = ("weights", "constants")


@dataclass
class Archive:
    """An archive of one method: its JSON, and its other members, keyed by name under the root."""

    root: str
    entry: str
    members: dict[str, bytes]
    program: Any
    configs: dict[str, Any]

    @classmethod
    def read(cls, path: Path) -> Archive:
        """Read an archive of one method."""
        with zipfile.ZipFile(path) as opened:
            found = {name: opened.read(name) for name in opened.namelist()}
        members = {name.partition("/")[2]: data for name, data in found.items()}
        (model,) = [name for name in members if name.startswith("models/")]
        entry = Path(model).stem
        configs = {
            kind: json.loads(members.pop(f"data/{kind}/{entry}_{kind}_config.json"))
            for kind in _KINDS
        }
        program = json.loads(members.pop(model))
        return cls(next(iter(found)).partition("/")[0], entry, members, program, configs)

    def copy(self) -> Archive:
        """Return a copy that is free to change."""
        return Archive(
            self.root,
            self.entry,
            dict(self.members),
            copy.deepcopy(self.program),
            copy.deepcopy(self.configs),
        )

    def pack(self) -> bytes:
        """Return the bytes of the archive. A member with the name of a JSON file replaces it."""
        entry, buffer = self.entry, io.BytesIO()
        texts = {f"models/{entry}.json": json.dumps(self.program)}
        for kind in _KINDS:
            texts[f"data/{kind}/{entry}_{kind}_config.json"] = json.dumps(self.configs[kind])
        encoded = {name: text.encode("ascii") for name, text in texts.items()}
        with zipfile.ZipFile(buffer, "w") as new:
            for name, data in {**encoded, **self.members}.items():
                info = zipfile.ZipInfo("x")
                info.filename = f"{self.root}/{name}"
                new.writestr(info, data)
        return buffer.getvalue()

    def write(self, path: Path) -> None:
        """Write the archive."""
        path.write_bytes(self.pack())


_CODE = "__import__('os').system('id >&2')"
_VALUES: list[Any] = [
    *(None, True, False, 0, 1, -1, 7, 1 << 31, 1 << 62, 1 << 63, -(1 << 63), 1 << 200, 10**400),
    *(0.5, -0.0, 1e308, float("inf"), float("nan"), "", "x", "x y", "0", "a.b", "__class__"),
    *("\ud800", "\0", "\x1b[2J", "\n", "'", '"', "\\", "x" * 5000, "../../x", "/etc/passwd"),
    *(_CODE, f"x={_CODE}", f"{_CODE} or 2", "9**9**9", "torch.os.system", "torch.load", "s0", "u0"),
    *("torch.ops.aten.add.Tensor", "torch.ops.aten.from_file.default", "torch.ops.aten.nope.x"),
    *("torch.ops.higher_order.cond", "_operator.add", "Symbol('s0')", "Symbol('u999999999')"),
    *([], {}, [1], [[]], {"a": 1}, {"as_int": 3}, {"as_none": True}, {"as_tensor": {"name": "x"}}),
    *({"as_expr": {"expr_str": _CODE}}, {"as_expr": {"expr_str": "s77"}}, [[[[[[[[[[]]]]]]]]]]),
    *({"__enum__": True, "fqn": "this:s", "name": "x"}, {"as_operator": "torch.os.system"}),
]


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield all containers of a JSON value with each of their keys."""
    keys = list(value) if isinstance(value, dict) else range(len(value))
    for key in keys:
        yield value, key
        if isinstance(value[key], (dict, list)):
            yield from _places(value[key])


def _change(document: Any, rng: random.Random) -> None:
    """Change one or two places of a JSON value, at any depth."""
    for _ in range(rng.choice((1, 1, 2))):
        places = list(_places(document))
        if not places:
            return
        holder, key = rng.choice(places)
        what = rng.randrange(8)
        if what < 3:
            holder[key] = copy.deepcopy(rng.choice(_VALUES))
        elif what == 3:
            del holder[key]
        elif what == 4:  # another part of the same document
            other, there = rng.choice(places)
            holder[key] = copy.deepcopy(other[there])
        elif what == 5 and isinstance(holder, dict):
            name = rng.choice([*(v for v in _VALUES if isinstance(v, str)), f"{key}_"])
            holder[name] = holder.pop(key)
        elif what == 6 and isinstance(holder, list):
            holder.insert(key, copy.deepcopy(rng.choice([*holder, *_VALUES])))
        else:
            holder[key] = _changed_leaf(holder[key], rng)


def _changed_leaf(value: Any, rng: random.Random) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + rng.choice((-2, -1, 1, 2, 7, 1 << 20, 1 << 40))
    if isinstance(value, str):
        if value[:1] in ("[", "{"):  # JSON in a string: a tree, metadata
            inner = json.loads(value)
            _change(inner, rng)
            return json.dumps(inner)
        at = rng.randrange(len(value) + 1)
        junk = rng.choice(("(", ")", ",", ".", "'", "*", "**", "9", "_", " ", "\n", "\0", _CODE))
        return value[:at] + junk + value[at + rng.randrange(3) :]
    return rng.choice(_VALUES)


def _of_bytes(archive: Archive, rng: random.Random) -> bytes:
    data = bytearray(archive.pack())
    for _ in range(rng.randint(1, 8)):
        data[rng.randrange(len(data))] = rng.randrange(256)
    return bytes(data)


def _of_directory(archive: Archive, rng: random.Random) -> bytes:
    """Change bytes of the directory and the local headers only, which are few among all bytes."""
    data = bytearray(archive.pack())
    with zipfile.ZipFile(io.BytesIO(data)) as members:
        starts = [info.header_offset for info in members.infolist()]
        spans = [(members.start_dir, len(data)), *((s, s + 30) for s in starts)]
    for _ in range(rng.randint(1, 3)):
        data[rng.randrange(*rng.choice(spans[:1] * 4 + spans))] = rng.choice((0, 1, 255, 128, 80))
    return bytes(data)


def _of_length(archive: Archive, rng: random.Random) -> bytes:
    data = archive.pack()
    cut = rng.randrange(len(data))
    return data[:cut] if rng.random() < 0.7 else data[:cut] + data[cut + rng.randrange(64) :]


def _of_json(archive: Archive, rng: random.Random) -> bytes:
    _change(rng.choice((archive.program, archive.program, *archive.configs.values())), rng)
    return archive.pack()


def _of_texts(archive: Archive, rng: random.Random) -> bytes:
    """Change one string, all of which have a meaning to torch."""
    texts = [(h, k) for h, k in _places(archive.program) if isinstance(h[k], str)]
    holder, key = rng.choice(texts)
    holder[key] = _changed_leaf(holder[key], rng)
    return archive.pack()


def _of_members(archive: Archive, rng: random.Random) -> bytes:
    """Drop, swap, shorten, lengthen or damage members, with correct checksums."""
    members, name = archive.members, rng.choice(list(archive.members))
    what = rng.randrange(6)
    if what == 0:
        del members[name]
    elif what == 1:
        members[name] = members[rng.choice(list(members))]
    elif what == 2:
        members[name] = members[name][: rng.randrange(len(members[name]) + 1)]
    elif what == 3:
        members[name] += bytes(rng.randrange(1, 5000))
    elif what == 4:
        members[rng.choice(("archive_format", "x", "data/weights/m.pt"))] = members.pop(name)
    else:
        data = bytearray(members[f"data/sample_inputs/{archive.entry}.pt"])
        data[rng.randrange(len(data))] = rng.randrange(256)
        members[f"data/sample_inputs/{archive.entry}.pt"] = bytes(data)
    return archive.pack()


_MUTATIONS = (_of_bytes, _of_directory, _of_length, _of_json, _of_json, _of_texts, _of_members)


def mutate(original: Archive, seed: int) -> bytes:
    """Return the bytes of an archive with one kind of change."""
    rng = random.Random(seed)
    return _MUTATIONS[seed % len(_MUTATIONS)](original.copy(), rng)


# Attempts


class _Watch:
    """Records files, processes and connections of this Python process, while switched on."""

    def __init__(self) -> None:
        self.on = False
        self.folder = ""
        self.touched: list[str] = []
        # Files that torch and Python load lazily, at any time.
        self._own = (sys.prefix, sys.base_prefix, str(Path(__file__).parents[2]), "/proc/", "/sys/")
        sys.addaudithook(self._hear)

    def _hear(self, event: str, args: tuple[Any, ...]) -> None:
        if not self.on:
            return
        if event == "open" and isinstance(args[0], (str, bytes)):
            path, flags = str(args[0]), args[2] or 0
            writes = flags & 0o3 or flags & 0o100
            if writes and path != "/dev/null":
                self.touched.append(f"writes {path}")
            elif not path.startswith((*self._own, self.folder)) and "/lib/" not in path:
                self.touched.append(f"reads {path}")
        elif event in ("os.system", "subprocess.Popen", "os.exec", "os.fork", "socket.connect"):
            self.touched.append(f"{event} {args}")


_watches: list[_Watch] = []


@contextmanager
def _watched(folder: Path) -> Iterator[_Watch]:
    if not _watches:
        _watches.append(_Watch())
    watch = _watches[0]
    watch.on, watch.folder, watch.touched = True, str(folder), []
    try:
        yield watch
    finally:
        watch.on = False


def _late(*_: Any) -> None:
    raise TimeoutError("an attempt hangs")


def attempt(data: bytes, folder: Path, entry: str) -> str:
    """Describe and load an archive; return "read", "refused", or what went wrong."""
    from pipeline.program.archive import load_example_inputs, load_program
    from pipeline.program.archive_facts import describe_archive
    from pipeline.store.errors import SourceError

    path = folder / "a.pt2"
    path.write_bytes(data)
    refused, program = False, None
    with _watched(folder) as watch:
        previous = signal.signal(signal.SIGALRM, _late)
        signal.alarm(_SECONDS)
        try:
            for read in (describe_archive, load_program, load_example_inputs):
                try:
                    found = read(path) if read is describe_archive else read(path, entry)
                    program = found if read is load_program else program
                except SourceError as error:
                    refused = True
                    if "\n" in str(error) or not str(error).isprintable():
                        return f"more than a line: {error!r}"
            if program is not None:
                _compile(program)
        except TimeoutError:
            return "hangs"
        except Exception:
            return f"traceback: {traceback.format_exc()}"
        finally:
            signal.alarm(0)
            signal.signal(signal.SIGALRM, previous)
    if watch.touched:
        return f"touches: {watch.touched[0]}"
    return "refused" if refused else "read"


def _compile(program: Any) -> None:
    """Let torch generate source code for a program, and run it. It may refuse."""
    try:
        program.module()
    except TimeoutError:
        raise
    except Exception:
        return


def _originals(folder: Path) -> list[Archive]:
    """Write archives that contain everything that can be changed."""
    import torch
    from torch.export import Dim, export
    from torch.export.pt2_archive._package import package_pt2

    from tests.trust.test_archives import ENTRY, Two

    rows = {"x": {0: Dim("rows", min=4, max=99)}, "scale": {"by": {}}, "mode": None}
    keywords = {"scale": {"by": torch.ones(4)}, "mode": "slow"}
    program = export(Two(), (torch.ones(6, 4),), keywords, dynamic_shapes=rows)
    found = []
    for number, each in enumerate((program, program.run_decompositions())):
        path = folder / f"{number}.pt2"
        package_pt2(str(path), exported_programs={ENTRY: each})
        found.append(Archive.read(path))
    return found


def _run(first: int, count: int) -> None:
    """Print the outcome of each seed as JSON, one per line."""
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        originals = _originals(folder)
        for original in originals:  # loads everything that would be loaded late
            assert attempt(original.pack(), folder, original.entry) == "read"
        for seed in range(first, first + count):
            original = originals[seed // len(_MUTATIONS) % len(originals)]
            print(json.dumps([seed, "begins"]), flush=True)
            started = time.perf_counter()
            outcome = attempt(mutate(original, seed), folder, original.entry)
            print(json.dumps([seed, outcome, time.perf_counter() - started]), flush=True)


def main(count: int, first: int = 0) -> int:
    """Try mutations, and return how many went wrong."""
    started, seconds = time.perf_counter(), 0.0
    outcomes: Counter[str] = Counter()
    seed, end = first, first + count
    while seed < end:
        command = [
            sys.executable,
            "-m",
            "tests.trust.mutations",
            "--run",
            str(seed),
            str(end - seed),
        ]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
            assert child.stdout is not None
            for line in child.stdout:
                number, outcome, *took = json.loads(line) if line[:1] == "[" else (None, "begins")
                if outcome == "begins":
                    continue
                seed, seconds = number + 1, max(seconds, took[0])
                outcomes[outcome.split(":")[0]] += 1
                if outcome not in ("read", "refused"):
                    print(number, outcome, flush=True)
                if seed % 500 == 0:
                    print(f"... {seed}: {dict(outcomes)}", flush=True)
        if child.returncode:
            print(seed, f"dies with {child.returncode}")
            outcomes["dies"] += 1
            seed += 1
    wrong = count - outcomes["read"] - outcomes["refused"]
    print(dict(outcomes), f"in {time.perf_counter() - started:.0f} s, the longest {seconds:.2f} s")
    return wrong


if __name__ == "__main__":
    if sys.argv[1] == "--run":
        _run(int(sys.argv[2]), int(sys.argv[3]))
    else:
        sys.exit(main(*map(int, sys.argv[1:3])) > 0)
