"""The commands that this package adds to doit: what each does, its options, and examples.

`doit help`, the tasks and the grammar of the command line are made from this one table.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType


@dataclass(frozen=True)
class Command:
    """A command of the command line.

    Attributes:
        summary: one line.
        words: what may follow its name.
        options: the help of its flags (`--name`), which may stand anywhere after its name.
        more: further lines of its help.
        examples: command lines with what they do.
    """

    name: str
    summary: str
    words: str = ""
    options: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    more: str = ""
    examples: tuple[tuple[str, str], ...] = ()


_TARGETS = "[package[/method] ...]"
_ANY = "Names may be patterns ('vision*', 'vision/enc*'); without a name, all are meant."

# Groups of tasks: `doit lower vision` is `doit lower:vision`.
GROUPS: Mapping[str, Command] = {
    each.name: each
    for each in (
        Command(
            "lower",
            "lower packages: export, quantize, compile and link what is stale",
            _TARGETS,
            more=f"{_ANY} Of a method alone, nothing is linked.",
            examples=(
                ("doit lower", "all packages"),
                ("doit lower vision 'asr*'", "these packages"),
                ("doit lower vision/classify", "one method, up to its object"),
                ("doit lower -n 4", "with four workers"),
                ("doit lower vision -a", "compile again, whatever the store holds"),
                ("doit lower -v", "with a line for each method in the table"),
            ),
        ),
        Command(
            "validate",
            "lower packages, run them, and compare each with its source program",
            _TARGETS,
            more=f"{_ANY} Of methods alone, these are run, in their package, with those that share "
            "state with them; reports say what was not asked for. Where the whole package was "
            "validated already, that is taken. The exit status is 0 only if all of them passed; "
            "`--allow not-judged,not-run` accepts these verdicts too.",
            examples=(
                ("doit validate vision", "one package"),
                ("doit validate vision/classify", "one method of a package"),
                ("doit validate --allow not-run", "also where this machine can't run a package"),
            ),
        ),
        Command(
            "export",
            "export the models whose source is a Python file",
            "[model | package ...]",
            examples=(("doit export asr", "the model of models/asr.py"),),
        ),
        Command(
            "quantize",
            "quantize methods, calibrated where that is asked for",
            _TARGETS,
            more=_ANY,
            examples=(("doit quantize vision/classify", "one method"),),
        ),
        Command(
            "compile",
            "compile methods to objects, without linking them",
            _TARGETS,
            more=_ANY,
            examples=(("doit compile vision", "all methods of a package"),),
        ),
    )
}

VERBS: Mapping[str, Command] = {
    each.name: each
    for each in (
        Command(
            "plan",
            "what a run would do, and why, without doing it",
            _TARGETS,
            {"resolved": "print what each method finally gets instead, and where it was written"},
            f"{_ANY} The exit status is 1 where a config has mistakes.",
            (
                ("doit plan", "all that is stale"),
                ("doit plan vision/classify", "one method"),
                ("doit plan --resolved vision", "the config that comes of the file"),
            ),
        ),
        Command(
            "explain",
            "why an action is current or not, and where its time went",
            "package[/method] ...",
            examples=(("doit explain vision/classify", "the file, key, tensor or library"),),
        ),
        Command(
            "check",
            "check configs alone, without torch: for editors and pre-commit",
            "[package | config file ...]",
            more="The exit status is 1 where there is a mistake.",
            examples=(("doit check", "all configs"), ("doit check vision", "one")),
        ),
        Command(
            "auto",
            "watch the workspace, and build what a saved file touches",
            "[package ...]",
            more="It ends with Ctrl-C.",
            examples=(("doit auto vision", "lowers and validates one package at each save"),),
        ),
        Command(
            "diff",
            "what tells the build from the accepted one, a revision or another build",
            "[revision | manifest | folder] [package ...]",
            {"markdown": "write Markdown, for a pull request"},
            "A revision's objects are read from git: the index and the work tree stay as they are.",
            (
                ("doit diff", "with the accepted baselines"),
                ("doit diff main --markdown", "with a branch"),
                ("doit diff ../other/build vision", "with another build"),
            ),
        ),
        Command(
            "baseline",
            "accept the present figures, to which gates hold later builds",
            "[package ...]",
            examples=(("doit baseline vision", "writes baselines/vision.yaml"),),
        ),
        Command(
            "attest",
            "write what packages were made from, signed, with their bills of materials",
            "[package ...]",
            more="Of packages that are lowered and validated as they are asked for; signing_key of "
            "the settings signs. The files stand beside the package: provenance of SLSA in "
            "*.intoto.jsonl, a CycloneDX ML-BOM in *.cdx.json.",
            examples=(("doit attest vision", "writes build/vision/vision.pte.intoto.jsonl"),),
        ),
        Command(
            "report",
            "render the reports of the last validation again",
            "[package ...]",
            examples=(("doit report vision", "build/vision/report.html and the others"),),
        ),
        Command(
            "contract",
            "what packages ask of their runtime, and the CMake lines that build it",
            "[package ...]",
            {
                "all": "one contract for all of them, as for one app; it is left in build/ too",
                "of-runtime": "write what this machine's runtime holds to targets/<name>.yaml",
            },
            "Without a name, all packages are meant; with --of-runtime the target `wheel` is.",
            (
                ("doit contract vision", "operators, backends, memory, and CMake lines"),
                ("doit contract --all", "of one runtime for all packages"),
                ("doit contract --of-runtime here", "writes targets/here.yaml"),
            ),
        ),
        Command(
            "backends",
            "the backends that methods can be lowered to, and their options",
            "[name ...]",
            examples=(("doit backends vulkan", "what one needs and takes"),),
        ),
        Command(
            "rebuild",
            "compile again without any cache, and compare every byte",
            "[package ...]",
            more="All of it runs on this machine, whatever the executor: the stores of a cluster's "
            "workers would answer for it.",
            examples=(("doit rebuild vision", "says where bytes differ"),),
        ),
        Command(
            "cache",
            "the store: what it holds and has saved; check it; evict",
            "stats | verify | gc",
            examples=(("doit cache verify", "hashes all of it again"),),
        ),
    )
}
VERIFY = Command(
    "verify",
    "hold a folder to the attestations in it, anywhere, without a workspace",
    "folder [public key ...]",
    options={"commit <id>": "the commit of git that all must be built from, in full"},
    more="Keys are Ed25519 public keys in PEM, by default those that the settings trust "
    "(PTE_PIPELINE_TRUSTED_KEYS). All files that an attestation names must be there, reports "
    "aside, beside it, and no others. The exit status is 1 where something is wrong.",
    examples=(
        ("doit verify release key.pub", "whether a release is what was built"),
        ("doit verify --commit $(git rev-parse v2) release key.pub", "and is no older one"),
    ),
)
INIT = Command(
    "init",
    "make a workspace here: a minimal exporter, a config, dodo.py",
    "[folder]",
    more="Files that are there already stay as they are, and it says so.",
    examples=(("doit init shop && cd shop && doit", "a first package"),),
)


def usage(command: Command) -> str:
    """Return how a command is called: `doit plan [--resolved] [package ...]`."""
    flags = [f"[--{name}]" for name in command.options]
    return " ".join(filter(None, ("doit", command.name, *flags, command.words)))
