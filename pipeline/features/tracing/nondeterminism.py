"""Finds sources of nondeterminism in the text of modules, such as the clock and random numbers.

No view of a process shows them all (the clock is read without a system call), so the text is
searched for their names. Generators with a state start from fixed seeds and don't count.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

_CLOCK, _RANDOM, _MACHINE, _TIMES = (
    "the clock",
    "random numbers",
    "this machine",
    "times of files",
)
_SOURCES = {
    **dict.fromkeys(
        [
            f"time.{name}{unit}"
            for name in (
                "time",
                "monotonic",
                "perf_counter",
                "process_time",
                "clock_gettime",
            )
            for unit in ("", "_ns")
        ]
        + [
            f"time.{name}"
            for name in ("localtime", "gmtime", "ctime", "strftime", "asctime")
        ]
        + [f"datetime.datetime.{name}" for name in ("now", "utcnow", "today")]
        + ["datetime.date.today", "timeit.default_timer"]
        + [f"numpy.datetime64.{name}" for name in ("now", "today")]
        + ["pandas.Timestamp.now", "pandas.Timestamp.utcnow", "pandas.Timestamp.today"],
        _CLOCK,
    ),
    **dict.fromkeys(
        [
            "uuid.uuid1",
            "uuid.uuid4",
            "os.urandom",
            "os.getrandom",
            "random.SystemRandom",
        ]
        + [
            f"secrets.{name}"
            for name in ("choice", "randbelow", "randbits", "SystemRandom")
        ]
        + [f"secrets.token_{name}" for name in ("bytes", "hex", "urlsafe")]
        + ["torch.seed", "torch.random.seed", "torch.Generator.seed"],
        _RANDOM,
    ),
    **dict.fromkeys(
        [
            f"os.{name}"
            for name in ("getpid", "getppid", "getloadavg", "uname", "cpu_count")
        ]
        + [
            *("os.getlogin", "os.getuid", "os.getgid", "os.times", "os.sysconf"),
            *("os.statvfs", "os.get_terminal_size", "resource.getrlimit"),
            *("resource.getrusage", "shutil.disk_usage", "psutil.virtual_memory"),
            "multiprocessing.cpu_count",
            "getpass.getuser",
        ]
        + [
            "socket.gethostname",
            "socket.getfqdn",
            "uuid.getnode",
            "os.sched_getaffinity",
        ]
        + [
            f"platform.{n}"
            for n in ("node", "uname", "machine", "processor", "platform")
        ]
        + ["platform.release", "platform.version", "torch.cuda.is_available"]
        + ["torch.cuda.device_count", "torch.cuda.get_device_name"]
        + ["torch.backends.mps.is_available", "torch.get_num_threads"],
        _MACHINE,
    ),
    **dict.fromkeys([f"os.path.get{name}time" for name in "mac"], _TIMES),
}
# Generators that take their seed from the kernel if they get none.
_SEEDED = {
    f"{module}.{name}": _RANDOM
    for module, names in {
        "random": ("Random", "seed"),
        "numpy.random": (
            *("default_rng", "RandomState", "seed", "SeedSequence", "Generator"),
            *("PCG64", "PCG64DXSM", "MT19937", "Philox", "SFC64"),
        ),
    }.items()
    for name in names
}
# Files of the kernel, which differ from one moment or machine to the next.
_FILES = re.compile(r"/dev/u?random$|/proc/|/sys/")
_IN_FILES = re.compile(rb"/dev/u?random|/proc/|/sys/")
_WORD = re.compile(r"[A-Za-z_]\w*")
_FIELDS = {
    **dict.fromkeys(
        [f"st_{name}time{unit}" for name in "mac" for unit in ("", "_ns")], _TIMES
    ),
    **dict.fromkeys(["st_ino", "st_dev", "st_uid", "st_gid"], _MACHINE),
}
# Functions that read files in native code, which raises no Python events.
_NATIVE = {
    f"{module}.{name}": "native code that reads files"
    for module, names in {
        "torch": ("from_file",),
        "torch.jit": ("load",),
        "torch.export": ("load",),
        "torch.UntypedStorage": ("from_file",),
        "torch.FloatStorage": ("from_file",),
        "safetensors": ("safe_open",),
        "safetensors.torch": ("load_file", "load_model"),
        "safetensors.numpy": ("load_file",),
        "ctypes": ("CDLL", "cdll", "PyDLL"),
    }.items()
    for name in names
}


def find_nondeterminism(path: Path, where: str, native: bool = False) -> Iterator[str]:
    """Yield a line for each nondeterministic name in a module.

    For example, `x.py:12 reads the clock (time.time)`.

    Args:
        where: the name of the module in these lines.
        native: whether functions that read files in native code count too.
    """
    text = path.read_bytes()
    sources = {**_SOURCES, **(_NATIVE if native else {})}
    if not _may_name(text, (*sources, *_SEEDED, *_FIELDS)):
        return
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):  # another language, or another version of Python
        return
    nodes = [*ast.walk(tree)]
    names = dict(_imported_names(nodes))
    called = {id(node.func): node for node in nodes if isinstance(node, ast.Call)}
    for node in nodes:
        name = _dotted(node, names)
        source = sources.get(name)
        if (
            source is None
            and name in _SEEDED
            and (call := called.get(id(node))) is not None
        ):
            source = None if _is_seeded(call) else _SEEDED[name]
        if source is None and isinstance(node, ast.Attribute) and node.attr in _FIELDS:
            source, name = _FIELDS[node.attr], node.attr
        if isinstance(node, ast.Constant) and _FILES.match(place := str(node.value)):
            source, name = _RANDOM if "random" in place else _MACHINE, place
        if source is not None:
            yield f"{where}:{getattr(node, 'lineno', 0)} reads {source} ({name})"


def _may_name(text: bytes, names: Iterable[str]) -> bool:
    """Return whether a module can name one of these, or a file of the kernel.

    It can if each part of a name occurs in its text. This spares most modules from being parsed.
    """
    if not text.isascii() or _IN_FILES.search(
        text
    ):  # other letters can stand for ASCII ones
        return True
    words = set(_WORD.findall(text.decode()))
    return any(words.issuperset(name.split(".")) for name in names)


def _imported_names(nodes: Iterable[ast.AST]) -> Iterator[tuple[str, str]]:
    for node in nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                top = alias.name.partition(".")[0]
                yield alias.asname or top, alias.name if alias.asname else top
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                yield alias.asname or alias.name, f"{node.module}.{alias.name}"


def _dotted(node: ast.AST, names: dict[str, str]) -> str:
    """Return the full dotted name that an expression spells, or "" if it isn't an imported name."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name) or node.id not in names:
        return ""
    return ".".join([names[node.id], *reversed(parts)])


def _is_seeded(call: ast.Call) -> bool:
    arguments = [*call.args, *(keyword.value for keyword in call.keywords)]
    return bool(arguments) and not all(
        isinstance(g, ast.Constant) and g.value is None for g in arguments
    )


def find_strings(path: Path) -> set[str]:
    """Return the string literals in a module's text."""
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):
        return set()
    nodes = ast.walk(tree)
    return {
        n.value
        for n in nodes
        if isinstance(n, ast.Constant) and isinstance(n.value, str)
    }
