"""A workspace in any state: edited, copied, restored, damaged, on a full disk, with false inputs.

After each build, the packages must equal those of a build from scratch with an empty store, its
exit status must say whether all is well, nothing may be written elsewhere, and nothing that data
names may run. `STATES_STEPS=2000 pytest -m slow -n 0 -s tests/trust/test_states.py` takes that many
steps and prints its counts.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial, wraps
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from tests.features.other_tasks.test_team import versions  # noqa: F401
from tests.support.disks import can_mount, mount_small
from tests.support.forked import run_doit
from tests.support.keys import write_keys
from tests.support.permissions import folders_of, mode, obey_permissions
from tests.support.team import LIE, MODELS, VERSIONS, Oracle, Package, Sources, make_checkout

STEPS = int(os.environ.get("STATES_STEPS", "50"))
AT_A_TIME = min(25, max(1, STEPS // 5))
NAMES = st.sampled_from(("ada", "ben"))
VERSION = st.sampled_from(VERSIONS)
PARTS = ("w", "w/build", "store")
PLACES = (
    "w/build/.store",
    "w/build/.state",
    "w/build/.files.json",
    "w/build/.archives.json",
    "w/.doit.sqlite3",
)
PLACES += ("store/actions", "store/blobs", "w/models/trained.pt2", "w/build/ada", *PARTS[1:])
PLANTED = {
    "doit.cfg": "[GLOBAL]\ndodoFile = planted.py\n",
    "planted.py": "import os\nos.system('touch {marker}')\n",
    "filelock.py": "import os\nos.system('touch {marker}')\n",
    "tools/HEAD": "ref: refs/heads/main\n",
    "tools/objects/x": "",
    "tools/refs/x": "",
    "tools/config": "[core]\nbare = false\nworktree = .\nfsmonitor = touch {marker}\n",
    "models/.gitattributes": "* filter=planted\n",
}
# Builds that must end well, with correct packages; after a harsh one, the next that ends well must
# have them.
GENTLE = ("plain", "plain", "plain", "read-only", "tomorrow", "yesterday", "untrusted")
HARSH = ("killed", "full store", "full build", "full temporary")


def die_later(seconds: float) -> None:
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, seconds)


def move_clock(seconds: float) -> None:
    now, now_ns = time.time, time.time_ns
    time.time = lambda: now() + seconds
    time.time_ns = lambda: now_ns() + int(seconds * 1e9)


def tell_lies() -> None:
    """Make exporters in this process read another seed than the hashed one."""
    read_text = Path.read_text

    def lie(path, *arguments, **named):
        text = read_text(path, *arguments, **named)
        return LIE if path.name == "seed" else text

    Path.read_text = lie


def step(**arguments):
    """Make a counted rule that prints its failure at once, since a retry may go differently."""

    def make(function):
        @wraps(function)
        def count(self, **values):
            self.counts["steps"] += 1
            self.counts[function.__name__] += 1
            self.taken.append((function.__name__, values))
            try:
                function(self, **values)
            except Exception:
                print("\n", self.taken, "\n", traceback.format_exc(), flush=True)
                raise

        return rule(**arguments)(count)

    return make


class States(RuleBasedStateMachine):
    versions: Path
    oracle: Oracle
    counts: Counter[str]

    @initialize()
    def begin(self):
        self.taken = []
        self.folder = Path(tempfile.mkdtemp(dir=self.versions.parent))
        self.outside = self.folder / "outside"
        (self.outside / "folder").mkdir(parents=True)
        (self.outside / "file").write_text("somebody's")
        self.keys = {name: write_keys(self.folder / name) for name in ("honest", "liar")}
        self.trusted = ()
        self.checkout = make_checkout(self.folder / "w", self.folder / "store", self.versions)
        self.sources = Sources({"ada": Package("exported")}, tasks=False)
        self.put_seed(version="1", keeps_time=False)
        self.swap_archive(version="1", way="replace")

    def teardown(self):
        if hasattr(self, "folder"):
            shutil.rmtree(self.folder)

    # What people edit

    @step(name=NAMES, model=st.sampled_from((*MODELS, *MODELS, "none")), number=st.integers(0, 1))
    def edit_config(self, name, model, number):
        packages = {**self.sources.packages, name: Package(model, number)}
        self.sources = replace(self.sources, packages=packages)

    @step(base=st.integers(0, 1), name=NAMES)
    def remove_config(self, base, name):
        packages = {n: p for n, p in self.sources.packages.items() if n != name}
        self.sources = replace(self.sources, packages=packages or self.sources.packages, base=base)

    @step(version=VERSION, keeps_time=st.booleans())
    def put_seed(self, version, keeps_time):
        path = self.checkout.root / "data" / "seed"
        path.parent.mkdir(exist_ok=True)
        stamp = path.stat().st_mtime_ns if keeps_time and path.exists() else time.time_ns()
        path.write_text(version)
        os.utime(path, ns=(stamp, stamp))
        self.sources = replace(self.sources, seed=version)

    @step(version=VERSION, way=st.sampled_from(("replace", "in place", "with the same stamp")))
    def swap_archive(self, version, way):
        path = self.checkout.root / "models" / "trained.pt2"
        path.parent.mkdir(exist_ok=True)
        stamp = path.stat().st_mtime_ns if path.exists() else time.time_ns()
        new = self.folder / "new.pt2"
        shutil.copy(self.versions / f"{version}.pt2", new)
        if way == "in place":
            path.write_bytes(new.read_bytes())
        else:
            if way == "with the same stamp":
                os.utime(new, ns=(stamp, stamp))
            os.replace(new, path)
        self.sources = replace(self.sources, version=version)

    @step(seconds=st.sampled_from((-86400, 0, 86400)), name=st.sampled_from(("data", "models")))
    def move_stamps(self, seconds, name):
        for path in (self.checkout.root / name).rglob("*"):
            os.utime(path, (time.time() + seconds, time.time() + seconds))

    # What happens to files

    @step(part=st.sampled_from(PARTS), keeps_times=st.booleans())
    def copy_and_go_on(self, part, keeps_times):
        copy = shutil.copy2 if keeps_times else shutil.copy
        place = self.folder / part
        if place.is_dir() and not place.is_symlink():
            other = self.folder / "copy"
            shutil.copytree(place, other, symlinks=True, copy_function=copy)
            shutil.rmtree(place)
            os.replace(other, place)

    @step(part=st.sampled_from(PARTS[1:]))
    def save(self, part):
        saved = self.folder / "saved" / part
        shutil.rmtree(saved, ignore_errors=True)
        if (self.folder / part).is_dir() and not (self.folder / part).is_symlink():
            shutil.copytree(self.folder / part, saved, symlinks=True)

    @step(part=st.sampled_from(PARTS[1:]))
    def restore(self, part):
        if (self.folder / "saved" / part).is_dir():
            self.take_away(part=part)
            shutil.copytree(self.folder / "saved" / part, self.folder / part, symlinks=True)

    @step(part=st.sampled_from(PLACES))
    def take_away(self, part):
        path = self.folder / part
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)

    @step(part=st.sampled_from(PLACES), kind=st.sampled_from(("file", "folder")))
    def link_out(self, part, kind):
        """A link in place of `build/` or of the store belongs to the user, and is followed."""
        path = self.folder / part
        if path.parent.is_dir() and "models" not in part and part not in PARTS:
            self.take_away(part=part)
            path.symlink_to(self.outside / kind)

    @step(
        number=st.integers(0, 1000),
        part=st.sampled_from(PARTS[1:]),
        how=st.sampled_from(("empty", "cut", "flip", "garbage", "other", "folder")),
    )
    def damage(self, number, part, how):
        files = [p for p in sorted((self.folder / part).rglob("*")) if p.is_file()]
        if not files or (self.folder / part).is_symlink():
            return
        path, other = files[number % len(files)], files[(number * 7 + 1) % len(files)]
        content = bytearray(path.read_bytes())
        if path.is_symlink() or not content:
            return
        content[number % len(content)] ^= 1
        contents = {"empty": b"", "cut": content[: len(content) // 2], "flip": content}
        contents |= {"garbage": b'{"a": [\0\xff', "other": other.read_bytes()}
        path.unlink()
        if how == "folder":
            path.mkdir()
        else:
            path.write_bytes(contents[how])

    @step()
    def plant(self):
        for name, text in PLANTED.items():
            path = self.checkout.root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text.format(marker=self.folder / "ran"))

    # What others do

    @step(names=st.sampled_from(((), ("honest",), ("honest", "liar"))))
    def trust(self, names):
        self.trusted = names

    @step(name=st.sampled_from(("honest", "liar")))
    def push(self, name):
        """Let someone else build the same and push it."""
        place = self.folder / "colleague"
        shutil.rmtree(place, ignore_errors=True)
        other = make_checkout(place, place / "store", self.versions)
        other.write(self.sources)
        for part in ("data", "models"):
            shutil.copytree(self.checkout.root / part, place / part, dirs_exist_ok=True)
        remote = {
            "PTE_PIPELINE_REMOTE": (self.folder / "remote").as_uri(),
            "PTE_PIPELINE_SIGNING_KEY": str(self.keys[name][0]),
        }
        prepare = tell_lies if name == "liar" else bool
        _, output = run_doit(place, ["lower"], {**other.environment, **remote}, 120, prepare)
        assert "Traceback" not in output, output
        shutil.rmtree(place)

    @step()
    def revoke(self):
        """Accept what a trusted liar has pushed, in a separate store, and then revoke the trust."""
        shutil.rmtree(self.checkout.store, ignore_errors=True)
        shutil.rmtree(self.checkout.root / "build", ignore_errors=True)
        self.push(name="liar")
        for self.trusted in (("honest", "liar"), ("honest",)):
            self.check(*self.run(["lower"]), sorted(self.sources.packages))

    # What builds do then

    @step(
        words=st.sampled_from(("lower", "lower validate", "lower:ada", "-a lower")),
        condition=st.sampled_from((*GENTLE, *GENTLE, *HARSH)),
        amount=st.integers(1, 60),
    )
    def build(self, words, condition, amount):
        status, output = self.run(words.split(), condition, amount)
        self.expect("Traceback" not in output, "tracebacks", output)
        if condition in GENTLE:
            self.check(status, output, ["ada"] if ":" in words else sorted(self.sources.packages))

    @step(words=st.sampled_from(("lower", "lower validate")))
    def build_again(self, words):
        """Whatever happened, the next build is correct, and the one after it has nothing to do."""
        names = sorted(self.sources.packages)
        self.check(*self.run(words.split()), names)
        status, output = self.run(words.split())
        self.check(status, output, names)
        line = f"up to date: {len(names)} package{'s' * (len(names) > 1)}\n"
        assert status or output.startswith(line), output

    @step(words=st.sampled_from(("plan", "list", "info lower", "cache verify", "cache stats")))
    def ask(self, words):
        _, output = self.run(words.split())
        self.expect("Traceback" not in output, "tracebacks", output)

    # What must hold

    def run(self, words, condition="plain", amount=0) -> tuple[int, str]:
        self.checkout.write(self.sources)
        prepare, environment = self.prepare(condition, amount)
        self.checkout.store.mkdir(exist_ok=True)
        folders = folders_of(self.checkout.store) if condition == "read-only" else []
        with mode(folders, 0o555):
            status, output = run_doit(self.checkout.root, words, environment, 120, prepare)
        self.counts["runs"] += 1
        self.counts[condition] += 1
        entries = {path.name for path in self.folder.iterdir()}
        expected = {"w", "store", "outside", "honest", "liar", "remote", "saved", "new.pt2"}
        inside = {p.relative_to(self.outside).as_posix() for p in self.outside.rglob("*")}
        sentinel = (self.outside / "file").read_text()
        self.expect("ran" not in entries, "commands", output)
        self.expect(entries <= expected | {"ran"}, "outside", f"{entries} {output}")
        self.expect(inside == {"file", "folder"} and sentinel == "somebody's", "outside", output)
        return status, output

    def prepare(self, condition, amount) -> tuple[Callable[[], object], dict[str, str]]:
        """Return what changes the process of a build, and its environment."""
        environment = dict(self.checkout.environment)
        if self.trusted:
            keys = os.pathsep.join(str(self.keys[name][1]) for name in self.trusted)
            environment["PTE_PIPELINE_TRUSTED_KEYS"] = keys
            environment["PTE_PIPELINE_REMOTE"] = (self.folder / "remote").as_uri()
            environment["PTE_PIPELINE_REMOTE_MODE"] = "read-only"
        if condition == "untrusted" or (self.checkout.root / "doit.cfg").exists():
            environment["PTE_PIPELINE_UNTRUSTED"] = "1"
        prepare: Callable[[], object] = bool
        if condition == "read-only":
            prepare = obey_permissions
        elif condition == "killed":
            prepare = partial(die_later, amount / 100)
        elif condition in ("tomorrow", "yesterday"):
            prepare = partial(move_clock, 86400 if condition == "tomorrow" else -86400)
        elif condition.startswith("full") and can_mount():
            temporary = self.folder / "saved"  # any folder will do
            places = {"store": self.checkout.store, "build": self.checkout.root / "build"}
            place = places.get(condition.removeprefix("full "), temporary)
            place.mkdir(parents=True, exist_ok=True)
            if place == temporary:
                environment["TMPDIR"] = str(place)
            prepare = partial(mount_small, place, 4 * amount)
        return prepare, environment

    def is_sound(self, name) -> bool:
        if name not in self.sources.packages:
            return False
        has_archive = (self.checkout.root / "models" / "trained.pt2").exists()
        return self.sources.is_sound(name) and (
            self.sources.packages[name].model != "trained" or has_archive
        )

    def check(self, status, output, names):
        if "build: Not a directory" in output:
            return
        assert bool(status) == (not all(map(self.is_sound, names))), output
        for name in filter(self.is_sound, names):
            content = self.checkout.bytes_of(name, f"{name}.pte")
            self.counts["packages"] += 1
            if content == self.oracle.bytes_of(self.sources, name):
                continue
            liars = replace(self.sources, seed=LIE)
            if "liar" in self.trusted and content == self.oracle.bytes_of(liars, name):
                self.counts["lies believed"] += 1
                continue
            is_earlier = content in self.oracle.contents()
            self.expect(False, "stale" if is_earlier else "wrong", output)

    def expect(self, holds, what, output):
        self.counts[what] += not holds
        assert holds, f"{what}: {output}"


@pytest.mark.slow
def test_builds_are_those_from_nothing_in_any_state(versions, tmp_path):  # noqa: F811
    States.versions = versions
    States.oracle = Oracle(tmp_path, versions)
    States.counts = Counter(
        dict.fromkeys(("stale", "wrong", "tracebacks", "outside", "commands"), 0)
    )
    try:
        run_state_machine_as_test(
            States,
            settings=settings(
                max_examples=max(1, STEPS // AT_A_TIME),
                stateful_step_count=AT_A_TIME,
                phases=(Phase.generate,),
                deadline=None,
                database=None,
                suppress_health_check=list(HealthCheck),
            ),
        )
    finally:
        print(json.dumps(States.counts))


@pytest.mark.slow
def test_what_a_liar_pushed_is_believed_only_while_he_is_trusted(versions, tmp_path):  # noqa: F811
    States.versions = versions
    States.oracle = Oracle(tmp_path, versions)
    States.counts = Counter()
    states = States()
    states.begin()
    try:
        states.revoke()
    finally:
        states.teardown()
    assert States.counts["lies believed"] > 0 and not States.counts["wrong"]
