"""Damages configs and settings, plans each one, and counts what must not happen.

`python -m tests.trust.config_mutations [COUNT] [SEED]` prints a JSON object. It counts tracebacks,
processes, imports of modules that no valid config imports, files opened outside the workspace and
the installation, files written outside `build/`, other packages that are not planned, and messages
longer than one line. A Python audit hook sees all of these but messages; nothing imports torch.
"""

from __future__ import annotations

import contextlib
import copy
import json
import os
import random
import shutil
import signal
import sys
import sysconfig
import tempfile
import time
import traceback
import zipfile
from collections import Counter
from pathlib import Path

import yaml

from pipeline.config.models import PackageConfig
from pipeline.store.digest import Digest

DIGEST = Digest("0" * 64)
REPOSITORY = Path(__file__).resolve().parents[2]
SETTINGS = """\
[tool.pte-pipeline]
jobs = 2
store_size = "1GB"
variables = ["SHARDS"]
secrets = ["TOKEN"]
data = ["inputs"]
remote = "file:///nowhere/at/all"
remote_trust = "unsigned"
remote_mode = "read-only"
remote_timeout = 1.5
"""
RICH = """\
extends: [_base]
model: m-${matrix.size}
export: {dtype: bf16, sizes: [1, 2]}
target: v${SHARDS:-3}
defaults: &d
  partitioners: [xnnpack: {per_op_mode: true}]
methods:
  encode:
    <<: *d
    modules: [encoder, shared@1]
    quantize: {quantizer: xnnpack, calibration: [inputs/a.npz], modules: {head: none}}
    edge:
      preserve_ops: [aten.linear.default]
      passes: [fusions:Fuse: {bits: 8, deep: [{a: 1.5}]}, 'fusions:nothing']
      passes_after_delegation:
        - factory: {fusions:nothing: {m: 1}}
        - executorch.exir.passes.cse_pass:CSEPass
    emit: {sym_shape_eval: hint_based, memory_planning: {algorithm: [greedy, fusions:nothing]}}
  audio: omit
  decode:
    partitioners:
      - ethos-u: {target: ethos-u55-128, extra_flags: [--optimise=Size], config_ini: my.ini}
      - vgf: {compiler_flags: [--require-static-shape]}
constant_methods: {get_max: 128, names: [a, b]}
matrix: {size: [small, large], how: {plain: {}, other: {validate: {atol: 0.5}}}}
package: p-${matrix.size}-${matrix.how}
emit:
  external_files: {weights: [decoder.*]}
  initialized_buffers: [count]
  passes: [fusions:Fuse: {key: '${TOKEN}'}]
  memory_planning: {alignment: 64}
  layout: {segment_alignment: 4096}
validate:
  atol: 1.0e-4
  cases: [zeros, strided]
  sequences: [[encode, encode]]
  methods: {encode: {examples: inputs/a.npz, gates: {max_latency_ratio: 2}}}
  gates: {max_size: 40MB, max_size_growth: 2%, allow_portable_ops: [aten.*_copy.*]}
"""
TOOLS = """\
    partitioners:
      - ethos-u: {target: ethos-u55-128, extra_flags: [--optimise=Size], config_ini: my.ini}
      - vgf: {compiler_flags: [--require-static-shape]}
"""
PORTABLE = "    partitioners: []\n"
PLANNED = ["p-large-other", "p-large-plain", "p-small-other", "p-small-plain"]
GOOD = "model: add_sub\nmethods: {add: {partitioners: [add_sub]}, sub: {partitioners: []}}\n"
TEXTS = [
    *("canary:boom", "fusions:os", "fusions:Popen", "subprocess:Popen", "os:system", "a.b:c.d"),
    *("../../etc/passwd", "/etc/passwd", "inputs/../../x.npz", "inputs/out.npz", "/dev/zero"),
    *("inputs/pipe.npz", "inputs/folder.npz", "inputs/loop.npz", "~/x.npz", "file:///etc/passwd"),
    *("a\0b", "a\nb", "\x1b[2J\x1b]0;x\x07", "\u202egnp.exe", "\u00e9", "e\u0301", "\u2028", " "),
    *("${HOME}", "${AWS_SECRET_ACCESS_KEY:-}", "${TOKEN}", "${SHARDS}", "${", "$", "$$", "${a.b}"),
    *("${matrix.size}", "{0.__class__}", "{what}", "%s%n", "{{7*7}}", "<script>alert(1)</script>"),
    *("$(touch x)", "`touch x`", "; touch x", "--output-dir=/tmp/x", "x --config=/tmp/x", "-rf"),
    *("a" * 300, "a" * 100_000, "*" * 2000 + "b", "(a+)+$", "a/" * 5000, "..", ".", "", "con"),
    *("yes", "0o17", "1:30", "1e999", "0x" + "f" * 6000, "9" * 5000, ".nan", "2026-11-22"),
    *("null", "<<", "*d", "&a", "!!python/object/apply:os.system ['id']", "run.json", "_base"),
]
VALUES = [
    *(0, -1, 1, 2**31, 2**63, 2**64, 10**30, 10**400, 1.5, -0.0, 1e308, float("inf"), float("nan")),
    *(True, False, None, [], {}, [[]], [None], {"a": None}, {"": ""}, {1: 2}, {True: 1, "a": 2}),
    *([1] * 3000, {str(n): n for n in range(2000)}, [["x"] * 50] * 50, {"x": {1: "a", "b": 2}}),
    {"canary:boom": {"x": 1}},
]
LINES = [
    *(
        "\u0000",
        "\ufeff",
        "\t",
        "? [a]: b",
        "- a",
        "---",
        "...",
        "%YAML 1.1",
        "!!binary x",
        "a: &a",
    ),
    "a: &a [x,x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b,*b,*b,*b]",
    "target: *missing",
    *("0x" + "f" * 6000, "9" * 5000, "[0x" + "f" * 90 + "]", "1.5e" + "9" * 60, ".inf"),
    "methods: &m {f: *m}",
    "<<: [*d, *d]",
    "[" * 200,
    "{a: " * 200,
    "model: x\nmodel: y",
]
# In addition to the expected files: `strftime` and similar functions read the time zone, and so on.
SYSTEM = ("/proc/", "/sys/", "/dev/null", "/dev/urandom", "/etc/localtime", "/usr/share/zoneinfo")
RUNS = ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.fork", "os.spawn")
CHANGES = {"os.mkdir": 0, "os.rmdir": 0, "os.remove": 0, "os.symlink": 1, "os.link": 1}
CHANGES |= {"os.rename": 1, "os.chmod": 0, "os.truncate": 0, "os.utime": 0, "os.mkfifo": 0}


class Watch:
    """Counts events through an audit hook while `on`."""

    def __init__(self, root: Path) -> None:
        self.on = False
        self.found: Counter[str] = Counter()
        self.first: dict[str, str] = {}
        self._known: set[str] = set()
        self._write = (str(root / "build"), str(root / ".store"))
        paths = {*sysconfig.get_paths().values(), sys.prefix, sys.base_prefix}
        self._read = tuple({str(root), str(REPOSITORY), *map(os.path.realpath, paths), *paths})
        sys.addaudithook(self._hook)

    def learn(self) -> None:
        """Allow no further imports from now on, except from the standard library."""
        self._known = {name.partition(".")[0] for name in sys.modules} | sys.stdlib_module_names

    def note(self, kind: str, what: object) -> None:
        self.found[kind] += 1
        self.first.setdefault(kind, str(what)[:2000])

    def _hook(self, event: str, given: tuple[object, ...]) -> None:
        if not self.on:
            return
        if event == "open" and isinstance(given[0], str | bytes | os.PathLike):
            self._opened(given)
        elif event.startswith(RUNS):
            self.note("processes", given)
        elif event == "import" and self._known:
            if str(given[0]).partition(".")[0] not in self._known:
                self.note("imports", given[0])
        elif event in CHANGES:
            changed = given[CHANGES[event]]
            own = f"/proc/self/fd/{changed}" if isinstance(changed, int) else changed
            self._changed(os.fsdecode(own))  # type: ignore[arg-type]

    def _opened(self, given: tuple[object, ...]) -> None:
        path = os.path.realpath(os.fsdecode(given[0]))  # type: ignore[arg-type]
        flags = given[2] if isinstance(given[2], int) else 0
        if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND):
            self._changed(path)
        elif "/actions/" not in path and not path.startswith((*self._read, *SYSTEM)):
            # `/actions/` belongs to the remote that damaged settings name, which may be any folder.
            self.note("opened_outside", path)

    def _changed(self, path: str) -> None:
        if not os.path.realpath(path).startswith(self._write):
            self.note("written", path)


def make_workspace(root: Path) -> None:
    """Make a workspace with targets for hostile names, inside and outside it."""
    shutil.copytree(REPOSITORY / "models", root / "models", ignore=shutil.ignore_patterns("__*"))
    for folder in ("partition_configs", "passes", "inputs/folder.npz", "baselines", "build"):
        (root / folder).mkdir(parents=True)
    fuse = "import os\nfrom subprocess import Popen\nclass Fuse: pass\ndef nothing(m): pass\n"
    (root / "passes" / "fusions.py").write_text(fuse)
    for size in ("small", "large"):
        (root / "models" / f"m-{size}.py").write_text("def export_methods(dtype, *, sizes): ...\n")
    with zipfile.ZipFile(root / "inputs" / "a.npz", "w") as archive:
        archive.writestr("x.npy", b"\x93NUMPY")
    (root / "inputs" / "out.npz").symlink_to("/etc/passwd")
    (root / "inputs" / "loop.npz").symlink_to("loop.npz")
    os.mkfifo(root / "inputs" / "pipe.npz")
    (root / "my.ini").write_text("[System_Config.A]\n[Memory_Mode.B]\n")
    (root / "pyproject.toml").write_text(SETTINGS)
    configs = root / "partition_configs"
    (configs / "_base.yaml").write_text("target: b\n")
    (configs / "good.yaml").write_text(GOOD)


def seeds() -> list[str]:
    shipped = sorted((REPOSITORY / "partition_configs").glob("*.yaml"))
    plain = RICH.replace(TOOLS, PORTABLE)
    return [plain, plain, plain, RICH, *(path.read_text() for path in shipped)]


class Mutations:
    """Turns valid texts into damaged ones."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def config(self, text: str) -> bytes:
        chance = self.random.random()
        if chance < 0.65:
            with contextlib.suppress(yaml.YAMLError, RecursionError):
                return self._structure(text).encode(errors="surrogatepass")
        return self._lines(text) if chance < 0.8 else self._bytes(text.encode())

    def settings(self, text: str) -> bytes:
        lines = text.splitlines()
        chance = self.random.random()
        if chance < 0.6:
            at = self.random.randrange(1, len(lines))
            value = self.random.choice([*map(_toml, TEXTS), *map(_toml, VALUES), "", "1979-05-27"])
            lines[at] = f"{lines[at].partition(' = ')[0]} = {value}"
        elif chance < 0.7:
            table = self.random.choice(
                ["[tool]\npte-pipeline = 5", "tool = 5", "[[tool]]", "[tool"]
            )
            lines[0] = table
        elif chance < 0.8:
            lines.insert(self.random.randrange(len(lines)), self.random.choice(["a=" + "[" * 3000,
                "x = 1", "jobs = 3", '"a\\nb" = 1', "\0", "[tool.pte-pipeline]"]))  # fmt: skip
        else:
            return self._bytes(text.encode())
        return "\n".join(lines).encode(errors="surrogatepass")

    def _structure(self, text: str) -> str:
        data = yaml.safe_load(text)
        for _ in range(self.random.randint(1, 3)):
            places = list(_places(data))
            if not places:
                break
            container, key = self.random.choice(places)
            self._change(container, key)
        return yaml.dump(data, sort_keys=False, allow_unicode=self.random.random() < 0.5)

    def _change(self, container: object, key: object) -> None:
        new = copy.deepcopy(self.random.choice(TEXTS if self.random.random() < 0.6 else VALUES))
        chance = self.random.random()
        if chance < 0.6:
            container[key] = new  # type: ignore[index]
        elif chance < 0.7:
            del container[key]  # type: ignore[attr-defined]
        elif chance < 0.8:
            for _ in range(self.random.choice([1, 5, 70])):
                container[key] = {"x": container[key]}  # type: ignore[index]
        elif isinstance(container, dict):
            with contextlib.suppress(TypeError):
                container[new] = container.pop(key)
        else:
            container.insert(0, new)  # type: ignore[attr-defined]

    def _lines(self, text: str) -> bytes:
        lines = text.splitlines()
        at = self.random.randrange(len(lines))
        indent = lines[at][: len(lines[at]) - len(lines[at].lstrip())]
        new = self.random.choice([*LINES, *lines])
        where = self.random.choice(["instead", "before", "inside"])
        if where == "inside":
            lines[at] = f"{lines[at].partition(':')[0]}: {new}"
        else:
            lines[at : at + (where == "instead")] = [indent + new]
        return "\n".join(lines).encode(errors="surrogatepass")

    def _bytes(self, content: bytes) -> bytes:
        found = bytearray(content)
        for _ in range(self.random.randint(1, 8)):
            at = self.random.randrange(len(found))
            found[at : at + self.random.randint(0, 3)] = self.random.randbytes(
                self.random.randint(0, 3)
            )
        if self.random.random() < 0.1:
            return bytes(found).decode(errors="replace").encode("utf-16")
        return bytes(
            found[: self.random.choice([None, None, self.random.randrange(len(found) + 1)])]
        )


def _places(data: object):  # type: ignore[no-untyped-def]
    members = data.items() if isinstance(data, dict) else enumerate(data)  # type: ignore[arg-type]
    for key, value in list(members):
        yield data, key
        if isinstance(value, dict | list):
            yield from _places(value)


def _toml(value: object) -> str:
    if isinstance(value, str):
        return json.dumps(value)
    return str(value).lower() if isinstance(value, bool | float) else json.dumps(value, default=str)


def plan_all(root: Path, watch: Watch, damaged: str) -> list[str]:
    """Plan a workspace as `doit list` and `doit plan --resolved` do, and record anything wrong.

    Return the packages without problems, except the valid one.
    """
    from pipeline.cli import tasks
    from pipeline.features.explain import plan as verb
    from pipeline.features.explain.resolved import resolved_view
    from pipeline.plan.plan import Plan
    from pipeline.store.errors import PipelineError
    from pipeline.store.workspace import open_workspace

    try:
        plan = Plan(open_workspace(root))
    except PipelineError as error:
        if "\n" in str(error) or "pyproject.toml" not in str(error):
            watch.note("messages", error)
        return []
    tasks._plan = lambda: plan
    for make in (tasks.task_export, tasks.task_quantize, tasks.task_compile, tasks.task_lower):
        list(make())
    list(tasks.task_validate())
    for package in plan.packages:
        lines = [str(problem) for problem in plan.problems(package)]
        for line in lines:
            if not line.startswith("partition_configs/") or not line.isprintable():
                watch.note("messages", repr(line))
        if package == "good" and lines and not any(damaged in line for line in lines):
            watch.note("others", lines)
        with contextlib.suppress(PipelineError):
            list(verb.run(plan, [package], resolved=True))
        if (config := plan.configs.config(package)) is not None:
            make_actions(config)
            list(resolved_view(config, plan.document(package)))
    with contextlib.suppress(PipelineError):
        list(verb.run(plan, []))
    plan.remember()
    return [each for each in plan.packages if each != "good" and not plan.problems(each)]


def make_actions(config: PackageConfig) -> list[str]:
    """Make the actions of a config as if its model had been exported; return their digests."""
    from pipeline.features.quantization.kind import QuantizeInputs, quantize_action
    from pipeline.plan.kinds.compile import CompileInputs, compile_action
    from pipeline.plan.kinds.link import describe_package, link_action
    from pipeline.plan.kinds.validate import ValidateInputs, validate_action
    from pipeline.program.sources import MethodSource

    methods = {name: MethodSource(Path("x"), name, DIGEST, DIGEST) for name in config.methods}
    quantizes = {}
    for name in config.quantized:
        quantizes[name] = quantize_action(QuantizeInputs(config, name, {name: methods[name]}))
    passes = {reference: {} for reference in config.pass_references(config.methods)}
    compiles = []
    for unit in config.units:
        sources = {name: methods[name] for name in unit}
        digests = {name: quantizes[name].digest for name in unit if name in quantizes}
        inputs = CompileInputs(config, unit, sources, digests, passes)
        compiles.append(compile_action(inputs))
    link = link_action(describe_package(config, compiles, quantizes, methods))
    validate = validate_action(ValidateInputs(config, {"x.pte": DIGEST}, methods))
    return [each.digest for each in (*quantizes.values(), *compiles, link, validate)]


def run(count: int = 200, seed: int = 0) -> dict[str, object]:
    """Damage `count` configs and settings; return the counts."""
    mutations, kinds, slowest = Mutations(seed), Counter[str](), (0.0, "")
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory() as name:
        root = Path(name, "workspace")
        make_workspace(root)
        given = {"SHARDS": "3", "TOKEN": "hunter2", "AWS_SECRET_ACCESS_KEY": "hunter3"}
        os.environ |= {"PTE_PIPELINE_STORE": str(root / ".store"), **given}
        sys.path.append(str(Path(name, "canary")))
        Path(name, "canary").mkdir()
        Path(name, "canary", "canary.py").write_text("def boom(*a, **k): print('boom')\n")
        watch, texts, config = Watch(root), seeds(), root / "partition_configs" / "mutant.yaml"
        for text in [*texts, "model: [", "model: subprocess", RICH.replace("small", "1:30")]:
            config.write_text(text)
            planned = plan_all(root, watch, "mutant")
            assert text is not texts[0] or planned == PLANNED, planned
        watch.learn()
        for number in range(count):
            of_settings = number % 6 == 5
            path = root / "pyproject.toml" if of_settings else config
            content = (
                mutations.settings(SETTINGS)
                if of_settings
                else mutations.config(mutations.random.choice(texts))
            )
            config.write_text(RICH)
            path.write_bytes(content)
            kinds["settings" if of_settings else "configs"] += 1
            seconds = _one(root, watch, content)
            slowest = max(slowest, (seconds, repr(content[:300])))
            if of_settings:
                path.write_text(SETTINGS)
    names = (
        "tracebacks",
        "processes",
        "imports",
        "opened_outside",
        "written",
        "others",
        "messages",
    )
    return {
        **kinds,
        **{name: watch.found[name] for name in names},
        "seconds": round(time.perf_counter() - begin, 1),
        "slowest": round(slowest[0], 2),
        "slowest_of": slowest[1],
        "first": watch.first,
    }


def _one(root: Path, watch: Watch, content: bytes) -> float:
    begin = time.perf_counter()
    signal.alarm(60)
    watch.on = True
    try:
        plan_all(root, watch, "mutant")
    except Exception:
        watch.note("tracebacks", f"{content[:600]!r}\n{traceback.format_exc()}")
    finally:
        watch.on = False
        signal.alarm(0)
    return time.perf_counter() - begin


if __name__ == "__main__":
    print(json.dumps(run(*(int(each) for each in sys.argv[1:])), indent=1))
