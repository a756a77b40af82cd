"""Lying remotes: the results of a real build, changed field by field.

`python -m tests.trust.forged 500` builds a package from that many forged remotes, half of them with
signatures, and counts the outcomes.
"""

from __future__ import annotations

import base64
import json
import os
import random
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from pipeline.store.digest import canonical_json, hash_bytes
from pipeline.store.entries import ActionEntry
from tests.support.bench import Bench, bench_of

LEFT_OUT = shutil.ignore_patterns(".store", "build", ".doit*")
# Names that must not become files, and values of a type that no record has.
NAMES = ("../../../stranger", "{outside}/stranger", "..", "", ".", "a\0b", "\x1b[2J", "a\\b", "C:x")
NAMES += ("a/b", "x" * 300, ".hidden", "PAIR.pte", "con.pte", "\ud800", "a\n", "manifest.json/x")
# An acceptable message for an export that hides a method.
REFUSED = ("is not a method of the model",)
VALUES = (None, True, -1, 0, 1.5, 10**400, "", "x", "0" * 64, [], {}, [[]], {"": None}, 1 << 62)


def check_of(record: dict[str, Any]) -> str:
    """Return the checksum of an action's record; KeyError if it isn't one."""
    more = {name: record[name] for name in ("stages", "peak") if name in record}
    entry = ActionEntry(record["key"], record["result"], record["seconds"], **more)
    return json.loads(entry.encode()["check"])


@dataclass
class Victim:
    """A fresh checkout of `bench`, with a remote that contains what `bench` built."""

    bench: Bench
    folder: Path
    signed: bool = False

    def __post_init__(self) -> None:
        self._key = Ed25519PrivateKey.generate()
        self.remote = self.folder / "remote"
        self.checkout = Bench(self.folder / "checkout")
        shutil.copytree(self.bench.root, self.checkout.root, ignore=LEFT_OUT)
        shutil.copytree(self.bench.store / "blobs", self.remote / "blobs")
        for path in self.bench.store.glob("actions/*/*.json"):
            self._write(path.relative_to(self.bench.store), json.loads(path.read_bytes()))
        public = self._key.public_key()
        pem = public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
        (self.folder / "key.pub").write_bytes(pem)

    @property
    def environment(self) -> dict[str, str]:
        settings = {"REMOTE": self.remote.as_uri(), "REMOTE_MODE": "read-only"}
        if self.signed:
            settings["TRUSTED_KEYS"] = str(self.folder / "key.pub")
        else:
            settings["REMOTE_TRUST"] = "unsigned"
        return {f"PTE_PIPELINE_{name}": value for name, value in settings.items()}

    def records(self) -> list[tuple[Path, dict[str, Any]]]:
        paths = sorted(self.remote.glob("actions/*/*.json"))
        return [(p.relative_to(self.remote), json.loads(p.read_bytes())["record"]) for p in paths]

    def find(self, kind: str) -> tuple[Path, dict[str, Any]]:
        return next((p, each) for p, each in self.records() if each["key"]["kind"] == kind)

    def put(self, content: bytes) -> str:
        """Put a blob into the remote."""
        blob = hash_bytes(content)
        path = self.remote / "blobs" / blob[:2] / blob[2:]
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)
        return blob

    def forge(self, kind: str, change: Callable[[dict[str, Any]], Any]) -> None:
        """Change the result of an action in the remote, and make its record consistent again."""
        path, record = self.find(kind)
        change(record["result"])
        self.replace(path, record)

    def replace(self, path: Path, record: dict[str, Any]) -> None:
        """Replace a record in the remote; if it was signed, the old signature stays."""
        with suppress(ValueError, TypeError):  # the value has no canonical form
            record = {**record, "check": check_of(record)}
        old = json.loads((self.remote / path).read_bytes())
        (self.remote / path).write_text(json.dumps({**old, "record": record}))

    def _write(self, name: Path, record: dict[str, Any]) -> None:
        message = b"pte-pipeline result\n" + canonical_json(record)
        signature = base64.b64encode(self._key.sign(message)).decode() if self.signed else None
        signer = hash_bytes(self._key.public_key().public_bytes_raw()) if self.signed else None
        (self.remote / name).parent.mkdir(parents=True, exist_ok=True)
        envelope = {"record": record, "signature": signature, "signer": signer}
        (self.remote / name).write_bytes(canonical_json(envelope))

    def outside(self) -> dict[str, bytes | None]:
        """Return all files that are neither in `build/` nor in the store."""
        own = (self.checkout.root / "build", self.checkout.store)
        return {
            str(path.relative_to(self.folder)): path.read_bytes() if path.is_file() else None
            for path in self.folder.rglob("*")
            if not any(path.is_relative_to(each) for each in own)
            and not path.name.startswith(".doit.sqlite3")
        }

    def package(self) -> dict[str, bytes]:
        """Return the files of the package that a device loads."""
        folder = self.checkout.root / "build" / "pair"
        return {path.name: path.read_bytes() for path in folder.glob("*.pt[ed]")}


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the paths of all values inside a JSON value."""
    yield path
    if isinstance(value, dict | list):
        for key, each in value.items() if isinstance(value, dict) else enumerate(value):
            yield from places(each, (*path, key))


def mutate(record: dict[str, Any], digests: list[str], outside: Path, draw: random.Random) -> str:
    """Change one place of a record; return the place and the change."""
    # Mostly the result, since the key's digest is the record's name.
    part = record if draw.random() < 0.3 else {"result": record["result"]}
    place = draw.choice([each for each in places(part) if each])
    owner = record
    for key in place[:-1]:
        owner = owner[key]
    name = draw.choice(NAMES).format(outside=outside)
    how = draw.choice(("value", "name", "digest", "key", "drop", "more", "deep", "double"))
    match how:
        case "value":
            owner[place[-1]] = draw.choice(VALUES)
        case "name":
            owner[place[-1]] = name
        case "digest":
            owner[place[-1]] = draw.choice(digests)
        case "key" if isinstance(owner, dict):
            owner[name] = owner.pop(place[-1])
        case "more" if isinstance(owner, dict):
            owner[name] = draw.choice([*VALUES, *digests])
        case "drop":
            del owner[place[-1]]
        case "deep":
            for _ in range(400):
                owner[place[-1]] = [owner[place[-1]]]
        case _ if isinstance(owner, list):
            owner.append(owner[place[-1]])
    return f"{how} {'.'.join(map(str, place))}"


def attack(bench: Bench, folder: Path, seed: int, signed: bool) -> tuple[str, list[str]]:
    """Build from a remote with some forged records.

    Return the changes, and everything that should not have happened.
    """
    draw = random.Random(seed)
    victim = Victim(bench, folder, signed)
    digests = [p.parent.name + p.name for p in sorted(victim.remote.glob("blobs/*/*"))]
    records = victim.records()
    done = []
    for path, record in draw.sample(records, draw.randint(1, 3)):
        done.append(f"{record['key']['kind']}: {mutate(record, digests, folder, draw)}")
        try:
            victim.replace(path, record)
        except (KeyError, TypeError):  # no longer a record
            (victim.remote / path).write_text(json.dumps({"record": record}))
    before = victim.outside()
    code = victim.checkout.doit("lower", "validate", timeout=120, **victim.environment)
    output, wrong = victim.checkout.output, []
    if victim.outside() != before:
        wrong.append("files outside")
    if "Traceback" in output:
        wrong.append("traceback")
    if victim.package() not in ({}, {"pair.pte": bench.bytes_of("pair", "pair.pte")}):
        wrong.append("wrong bytes")
    failures = [line for line in output.splitlines() if " failed" in line and ": " in line]
    if code and not (failures and all(any(why in line for why in REFUSED) for line in failures)):
        wrong.append("failed")
    return "; ".join(done), wrong


def main(number: int) -> None:
    counts: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as place:
        bench = bench_of("pair", Path(place))
        assert bench.doit() == 0, bench.output
        for seed in range(number):
            folder = Path(place) / "victim"
            folder.mkdir()
            signed = bool(seed % 2)
            done, wrong = attack(bench, folder, seed, signed)
            label = "signed" if signed else "unsigned"
            counts.update([label, *(f"{label}: {each}" for each in wrong)])
            if wrong:
                print(seed, label, done, wrong, file=sys.stderr, flush=True)
            shutil.rmtree(folder)
    print(json.dumps(counts, indent=1))


if __name__ == "__main__":
    os.environ.pop("PTE_PIPELINE_REMOTE", None)
    main(int(sys.argv[1]))
