"""Measures how much a reader of a package has to keep in mind, from its source text alone.

Four figures: syntax nodes per code line (density), record types, names that don't say what they are
bound to (pronouns and participles), and lines with a comment, including trailing ones. The module
knows no folders and no ceilings. It parses the code and imports none of it.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

# Names that make a reader ask: each what? found what?
_VAGUE_WORDS = """
    each every own given made found known other others one ones what whose left wanted asked told
    seen taken kept held said done gone here there these those this that it its them they such same
    rest again beside
"""
VAGUE_NAMES = frozenset(_VAGUE_WORDS.split())
_RECORD_BASES = frozenset({"BaseModel", "Model", "NamedTuple", "Struct", "TypedDict"})
_ANNOTATIONS = ("annotation", "returns")
# Directives to a tool don't help a reader, unless a reason follows them.
_DIRECTIVE = re.compile(r"#\s*(noqa|type|fmt): ?[\w, ]+(\[[\w, -]+\])?\s*")


@dataclass
class Measure:
    """The figures of some modules; `+` combines two of them."""

    modules: int = 0
    lines: int = 0
    code_lines: int = 0
    comment_lines: int = 0
    nodes: int = 0
    names: int = 0
    vague_names: int = 0
    records: set[str] = field(default_factory=set)

    def __add__(self, other: Measure) -> Measure:
        return Measure(
            self.modules + other.modules,
            self.lines + other.lines,
            self.code_lines + other.code_lines,
            self.comment_lines + other.comment_lines,
            self.nodes + other.nodes,
            self.names + other.names,
            self.vague_names + other.vague_names,
            self.records | other.records,
        )

    @property
    def nodes_a_line(self) -> float:
        return self.nodes / max(self.code_lines, 1)

    @property
    def vague_percent(self) -> float:
        return 100 * self.vague_names / max(self.names, 1)

    @property
    def comment_percent(self) -> float:
        return 100 * self.comment_lines / max(self.lines, 1)


def measure_modules(texts: Mapping[str, str]) -> dict[str, Measure]:
    """Return the figures of each module, keyed by name, from the texts of all modules.

    A class also counts as a record if it inherits from one in another module.
    """
    trees = {name: ast.parse(text) for name, text in texts.items()}
    records = find_records(trees)
    return {
        name: _measure_module(texts[name], tree, records.get(name, set()))
        for name, tree in trees.items()
    }


def find_records(trees: Mapping[str, ast.Module]) -> dict[str, set[str]]:
    """Return the record types that each module declares.

    These are dataclasses, typed dicts, named tuples, models, and whatever inherits from one of
    them.
    """
    bases: dict[str, set[str]] = {}
    declared: dict[str, set[str]] = {}
    records: set[str] = set()
    for module, tree in trees.items():
        classes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
        declared[module] = {node.name for node in classes}
        for node in classes:
            bases[node.name] = {_base_name(base) for base in node.bases}
            is_dataclass = any("dataclass" in ast.unparse(d) for d in node.decorator_list)
            if is_dataclass or bases[node.name] & _RECORD_BASES:
                records.add(node.name)
    while True:
        heirs = {name for name, parents in bases.items() if parents & records} - records
        if not heirs:
            break
        records |= heirs
    return {module: names & records for module, names in declared.items()}


def find_shared_names(texts: Mapping[str, str]) -> dict[str, list[str]]:
    """Return the class names that several modules declare, with the modules that declare each."""
    modules_by_name: dict[str, list[str]] = {}
    for module, text in texts.items():
        for node in ast.parse(text).body:
            if isinstance(node, ast.ClassDef):
                modules_by_name.setdefault(node.name, []).append(module)
    return {name: modules for name, modules in modules_by_name.items() if len(modules) > 1}


def find_imports(texts: Mapping[str, str]) -> dict[str, set[str]]:
    """Return which of these modules each module imports, including lazy imports."""
    imports: dict[str, set[str]] = {}
    for module, text in texts.items():
        names: set[str] = set()
        for node in ast.walk(ast.parse(text)):
            names.update(_imported_names(node, texts))
        imports[module] = names
    return imports


def find_closure(module: str, imports: Mapping[str, set[str]]) -> set[str]:
    """Return a module and all modules that it imports, directly or indirectly."""
    closure: set[str] = set()
    waiting = [module]
    while waiting:
        name = waiting.pop()
        if name not in closure:
            closure.add(name)
            waiting += imports[name]
    return closure


def _measure_module(text: str, tree: ast.Module, records: set[str]) -> Measure:
    documented = _docstring_lines(tree)
    measure = Measure(modules=1, lines=text.count("\n"), records=records)
    measure.comment_lines = _count_comments(text)
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.strip()
        is_code = stripped and not stripped.startswith("#")
        if is_code and number not in documented:
            measure.code_lines += 1
    measure.nodes = sum(1 for _ in _nodes_to_read(tree))
    for name in _bound_names(tree):
        measure.names += 1
        measure.vague_names += name.strip("_") in VAGUE_NAMES
    return measure


def _count_comments(text: str) -> int:
    """Return the number of lines with a comment (a line has at most one)."""
    if "#" not in text:  # tokenizing takes longer than all other measurements
        return 0
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    comments = [token.string for token in tokens if token.type == tokenize.COMMENT]
    return sum(1 for comment in comments if not _DIRECTIVE.fullmatch(comment))


def _nodes_to_read(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes that a reader reads: no load or store contexts, annotations or docstrings."""
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.expr_context):
            continue
        yield node
        for name, value in ast.iter_fields(node):
            if name in _ANNOTATIONS:
                continue
            children = value if isinstance(value, list) else [value]
            for child in children:
                if isinstance(child, ast.AST) and not _is_docstring(child):
                    waiting.append(child)


def _is_docstring(node: ast.AST) -> bool:
    if not isinstance(node, ast.Expr) or not isinstance(node.value, ast.Constant):
        return False
    return isinstance(node.value.value, str)


def _docstring_lines(tree: ast.Module) -> set[int]:
    lines: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and _is_docstring(node):
            lines.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return lines


def _bound_names(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.arg):
            yield node.arg


def _base_name(base: ast.expr) -> str:
    """Return the bare name of a base class, such as `Model` for `config.Model[int]`."""
    return ast.unparse(base).partition("[")[0].rpartition(".")[2]


def _imported_names(node: ast.AST, modules: Mapping[str, str]) -> Iterator[str]:
    if isinstance(node, ast.Import):
        names = [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom) and not node.level:
        names = []
        for alias in node.names:
            submodule = f"{node.module}.{alias.name}"
            names.append(submodule if submodule in modules else str(node.module))
    else:
        names = []
    yield from (name for name in names if name in modules)
