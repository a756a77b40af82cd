"""Checks of code blocks by language.

Python imports must exist, commands and their options must be known, and program output must consist
of this package's texts.
"""

from __future__ import annotations

import ast
import json
import re
import shlex
import sys
import tomllib
from functools import cache
from importlib import import_module
from importlib.metadata import requires
from importlib.util import find_spec
from pathlib import Path

from doit.cmd_list import List
from doit.cmd_run import Run

from pipeline.backends.delegate_devices import VARIABLE as DEVICES_VARIABLE
from pipeline.cli.commands import ANYWHERE, GROUPS, VERBS
from pipeline.cli.run_options import take_option
from pipeline.cli.workspace_commands import Clean
from pipeline.features.delegate_libraries.libraries import VARIABLE as LIBRARIES_VARIABLE
from pipeline.moments import find_functions
from pipeline.store.setting_table import find_settings
from pipeline.store.settings_reader import UNTRUSTED_VARIABLE
from tests.docs.blocks import Block
from tests.support.bench import REPOSITORY
from tests.support.setting_variables import find_variables

# Settings and entry points


def check_toml(block: Block) -> None:
    document = tomllib.loads(block.text)
    for name, points in document.get("project", {}).get("entry-points", {}).items():
        assert any(f'"{name}"' in text for text in _sources()), f"no entry points of {name}"
        for target in points.values():
            assert re.fullmatch(r"[\w.]+(:\w+)?", target), target
    settings = document.get("tool", {}).get("pte-pipeline", {})
    assert settings.keys() <= find_settings().keys(), settings
    assert document.keys() <= {"project", "tool", "build-system"}


@cache
def _sources() -> list[str]:
    files = sorted((REPOSITORY / "pipeline").rglob("*.py"))
    return [path.read_text(encoding="utf-8") for path in files]


# Python

# Modules of a reader in examples, and of distributions that the tests do without.
_ELSEWHERE = {
    "acme_delegate": "a plugin in an example",
    "classifier": "the model of the tutorial",
    "efficientnet_lite_pytorch": "of the extra `gallery`",
    "acme_sums": "the plugin that the page itself makes",
    "transformers": "an extra of the gallery",
    "torchmetrics": "a library that metrics of a workspace may use",
    "dask_jobqueue": "an extra of clusters with a queue, which needs one",
}


def check_python(block: Block) -> None:
    """Compile a block and look up its imports. Raises AssertionError, SyntaxError."""
    tree = ast.parse(block.text, block.place)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                _check_import(alias.name, None)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            for alias in node.names:
                _check_import(node.module, alias.name)


def _check_import(module: str, name: str | None) -> None:
    top = module.partition(".")[0]
    if top in _ELSEWHERE:
        return
    if top in sys.stdlib_module_names:
        assert name in (None, "*") or hasattr(import_module(module), name), f"no {module}.{name}"
        return
    path = _find_module(module)
    if name not in (None, "*") and path.suffix == ".py":
        text = path.read_text(encoding="utf-8")
        known = re.search(rf"\b{re.escape(name)}\b", text) or _find_module(f"{module}.{name}")
        assert known, f"{module} has no {name}"


def _find_module(module: str) -> Path:
    """Return the file of a module without importing the module or its parents.

    Raises:
        AssertionError: a package has no such module.
    """
    top, *rest = module.split(".")
    spec = find_spec(top)
    assert spec is not None, f"no module {module}"
    if spec.submodule_search_locations is None:
        return Path(spec.origin)
    for folder in map(Path, spec.submodule_search_locations):
        place = folder.joinpath(*rest)
        libraries = place.parent.glob(f"{place.name}.*.so") if rest else ()
        files = [place / "__init__.py", place.with_suffix(".py"), *libraries]
        for file in files if rest else files[:1]:
            if file.is_file():
                return file
        if place.is_dir():
            return place  # a namespace
    raise AssertionError(f"no module {module}")


# Commands

# Programs that a page may call, with a description.
PROGRAMS = {
    ".": "shell", "apt": "Debian", "apt-get": "Debian", "cat": "shell", "cd": "shell",
    "chgrp": "shell", "chmod": "shell", "cp": "shell",
    "dask": "of the extra `dask`", "eval": "shell", "git": "git", "grep": "shell",
    "cmake": "a reader's own", "g++": "a reader's own", "docker": "a reader's own",
    "hf": "of transformers' hub client", "jq": "a reader's own", "mkdir": "shell",
    "npm": "Node's",
    "mkdocs": "of the extra `docs`", "openssl": "a reader's own", "pip": "checked below",
    "printf": "shell", "pytest": "of the extra `test`", "python": "checked below",
    "source": "shell", "rsync": "a reader's own", "scp": "a reader's own",
    "examples/arm/setup.sh": "ExecuTorch's", "backends/arm/test/setup_testing.sh": "ExecuTorch's",
    "python3.12": "checked below", "python3": "checked below",
    "sed": "shell", "sh": "shell", "tail": "shell", "umask": "shell",
}  # fmt: skip
# Third-party variables that a page may set, and who reads them.
_VARIABLES_OF_OTHERS = {"VK_DRIVER_FILES": "the Vulkan loader"}
_SEPARATORS = {"&&", "||", ";", "|", "&"}


def commands_of(text: str) -> list[list[str]]:
    """Return the commands of a shell script without control flow, as lists of words."""
    found = []
    joined = text.replace("\\\n", " ")
    for line in re.sub(r"\$\(([^()]*)\)", "SUBSTITUTED", joined).splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        words: list[str] = []
        for word in lexer:
            if word in _SEPARATORS:
                found.append(words)
                words = []
            else:
                words.append(word)
        found.append(words)
    return [words for words in found if words]


def _known_variables() -> set[str]:
    settings = {
        *find_variables().values(),
        UNTRUSTED_VARIABLE,
        LIBRARIES_VARIABLE,
        DEVICES_VARIABLE,
    }
    device = (REPOSITORY / "examples/delegates/corstone/pte_corstone.py").read_text()
    settings |= set(re.findall(r'"(CORSTONE_\w+)"', device))
    return settings | _VARIABLES_OF_OTHERS.keys()


def check_shell(text: str) -> None:
    """Check that all programs, verbs and options of a script exist. Raises AssertionError."""
    for words in commands_of(text):
        if words[0] == "export":
            del words[0]
        while words and re.fullmatch(r"\w+=.*", words[0]):
            name = words.pop(0).partition("=")[0]
            assert name in _known_variables(), f"no setting {name}"
        if not words:
            continue
        path, *rest = words
        program = path.removeprefix(".venv/bin/")
        if program == "ssh":  # followed by a machine and the script to run there
            check_shell(rest[1])
            continue
        if program in ("doit", "pte"):
            check_doit(rest)
            continue
        assert program in PROGRAMS, f"unknown program {program}"
        if program == "pip":
            _check_pip(rest)
        elif program in ("python", "python3"):
            _check_program(rest)


def check_doit(words: list[str]) -> None:
    """Check the verb and the options of a doit command line."""
    for option in find_functions("options"):
        words, _ = take_option(words, f"--{option}")
    command = next((word for word in words if not word.startswith("-")), "")
    known = {**VERBS, **ANYWHERE}
    if command in known:
        options = {f"--{name.split()[0]}" for name in known[command].options}
    elif command == "clean":
        options = _options_of(Clean)
    elif command == "list":
        options = _options_of(List) | {"--json"}  # from the feature `listing`
    else:  # a group of tasks, a package, or all packages
        assert not command or command in GROUPS or re.match(r"[\w*-]+[:/]", command) or words, words
        options = _options_of(Run) | {"--allow"}
    for label in find_functions("option_help"):
        options |= {option.split()[0] for option in label.split(", ")}
    for word in words:
        if word.startswith("-"):
            assert word.partition("=")[0] in options, f"doit {command} has no option {word}"


def _options_of(command) -> set[str]:
    options = (
        [*command.base_options, *command.cmd_options] if hasattr(command, "base_options") else []
    )
    options = options or list(command.cmd_options)
    options += list(getattr(command, "doit_options", ()))
    names = {f"--{option['long']}" for option in options if option.get("long")}
    names |= {f"-{option['short']}" for option in options if option.get("short")}
    return names


def _check_pip(words: list[str]) -> None:
    extras = {
        extra
        for line in requires("pte-pipeline") or ()
        for extra in re.findall(r"""extra == ['"]([\w-]+)['"]""", line)
    }
    for word in words:
        for extra in re.findall(r"\.\[([\w,-]+)\]", word):
            assert {*extra.split(",")} <= extras, f"no extra {extra}"
    if "-r" in words:
        file = words[words.index("-r") + 1]
        assert (REPOSITORY / file).is_file() or file == "requirements.txt", file


def _check_program(words: list[str]) -> None:
    if words[0] == "-m":
        assert words[1] in ("venv",) or find_spec(words[1]) is not None, words
    elif not words[0].startswith("build/"):
        assert (REPOSITORY / words[0]).is_file() or words[0] == "comment.py", words


# Apps

# What apps call in ExecuTorch and its bindings, with the file that declares it: in ExecuTorch 1.4.1
# below extension/, in react-native-executorch 0.10.2 below src/. Their compilers aren't installed.
_KOTLIN = "android/executorch_android/src/main/java/org/pytorch/executorch"
_SWIFT = "apple/ExecuTorch/Exported"
APP_CALLS = {
    "kotlin": {
        **dict.fromkeys(("load", "execute"), f"{_KOTLIN}/Module.kt"),
        **dict.fromkeys(("fromBlob", "dataAsFloatArray"), f"{_KOTLIN}/Tensor.kt"),
        **dict.fromkeys(("from", "toTensor"), f"{_KOTLIN}/EValue.kt"),
    },
    "swift": {
        "Module": f"{_SWIFT}/ExecuTorchModule.h",
        **dict.fromkeys(("load", "execute"), f"{_SWIFT}/ExecuTorch+Module.swift"),
        **dict.fromkeys(("Tensor", "scalars"), f"{_SWIFT}/ExecuTorch+Tensor.swift"),
    },
    "typescript": {
        **dict.fromkeys(("loadModel", "execute"), "core/model.ts"),
        **dict.fromkeys(("tensor", "getData", "dispose"), "core/tensor.ts"),
    },
}
# What apps call on their platform.
_PLATFORM_CALLS = {
    "kotlin": {"File", "exists", "open", "use", "outputStream", "copyTo", "longArrayOf", "if"},
    "swift": {"iOS", "path", "Package", "library", "package", "product", "target", "unsafeFlags"},
    "typescript": {"Float32Array"},
}
# What `doit call-sites` generates for the package `vision`, which the pages use.
_GENERATED = {"Vision", "classify"}
_DEFINED = re.compile(r"\b(?:fun|func|function) (\w+)")
_CALL = re.compile(r"\b(\w+)(?:<\w+>)?\(")


def check_app(block: Block) -> None:
    """Check that an app's code is balanced, and calls nothing that its bindings lack."""
    known = {*APP_CALLS[block.language], *_PLATFORM_CALLS[block.language], *_GENERATED, "init"}
    known |= {*_DEFINED.findall(block.text)} | {"dependencies", "implementation"}
    calls = {*_CALL.findall(block.text)}
    assert calls <= known, f"nobody declares {sorted(calls - known)}"
    for opening, closing in ("()", "[]", "{}"):
        assert block.text.count(opening) == block.text.count(closing), f"{opening}{closing}"


# What programs print

_QUOTED = re.compile(r"'[^']*'|`[^`]*`|\S*[/.=]\w\S*|\S*\d\S*|\b[A-Z]\w*[A-Z]\w*")
_SHORT = 5  # words; in shorter lines names outweigh our words
_LEAST = 0.4  # share of a longer line's letters that must come from our texts


def check_output(text: str) -> None:
    """Check a block of commands, after `$`, and their output.

    Apart from names and figures, the output must consist of texts that this package can print.
    """
    for line in text.splitlines():
        if line.startswith("$ "):
            check_shell(line[2:])
        elif line.strip() not in ("", "..."):
            assert is_printed(line), f"nothing prints: {line}"


def is_printed(line: str) -> bool:
    names = {place for match in _QUOTED.finditer(line) for place in range(*match.span())}
    words = [match for match in re.finditer(r"[A-Za-z]{2,}", line) if match.start() not in names]
    if len(words) < _SHORT:
        return not words or any(match[0] in _vocabulary() for match in words)
    printed: set[int] = set()
    for fragment in _fragments():
        place = line.find(fragment)
        while place >= 0:
            printed.update(range(place, place + len(fragment)))
            place = line.find(fragment, place + 1)
    letters = [place for match in words for place in range(*match.span())]
    return sum(place in printed for place in letters) >= _LEAST * len(letters)


@cache
def _texts() -> list[str]:
    """Return the string literals of this package, all of which use double quotes."""
    found: set[str] = set()
    for source in _sources():
        code = re.sub(r'"""[\s\S]*?"""', "", source)
        found.update(re.findall(r'"((?:[^"\\\n]|\\.)*)"', code))
    return sorted(found)


@cache
def _fragments() -> list[str]:
    """Return the texts of more than one word, or with space around a word."""
    parts = {part for text in _texts() for part in re.split(r"\{[^}]*\}|\n", text)}
    return sorted(part for part in parts if len(part) > 6 and " " in part)


@cache
def _vocabulary() -> set[str]:
    return {word for text in _texts() for word in re.findall(r"[A-Za-z]{2,}", text)}


def check_json(text: str) -> None:
    """Check that a block is JSON, where … stands for omitted parts."""
    json.loads(text)
