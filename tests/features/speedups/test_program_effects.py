"""Programs are traced without a run before, to the same graphs; unclear programs are run first."""

from io import BytesIO

import pytest
import torch
from torch._functorch import aot_autograd
from torch.export import Dim, _trace, export

from pipeline.features.speedups.program_effects import make_tracing
from pipeline.program.patching import replaced, wrapped
from tests.support.matrix import in_tiers


class Module(torch.nn.Module):
    """Calls a function of itself and its input, with a weight and two buffers: float32 [4]."""

    def __init__(self, function):
        super().__init__()
        self.function = function
        self.weight = torch.nn.Parameter(torch.arange(4.0))
        self.register_buffer("state", torch.zeros(4))
        self.register_buffer("other", torch.ones(4))

    def forward(self, x):
        return self.function(self, x)


def update(self, x):
    """Change a buffer, a row of another one, and a value, and return values computed from them."""
    self.state.add_(x[0])
    self.other[1:2].copy_(x[1, 1:2])
    y = x * 2
    y.relu_()
    y[0].add_(self.state)
    return y + self.other, self.state * self.weight


def use_sizes(function):
    """Return a function whose last values compute with sizes, whose nodes are numbered."""

    def compute(self, x):
        (y, *_), _ = torch.utils._pytree.tree_flatten(function(self, x))
        z = y * 2 + 1 - y.sum()
        both = torch.cat([z.flatten(), (z * y).flatten()])
        return both[None].eq(1), z.mul(3).sub(1).add(2), z.flip(0).roll(1, 0)

    return compute


CLEAR = {
    "a linear": lambda self, x: torch.nn.functional.linear(x, self.weight[None]),
    "a view of a value": lambda self, x: (x + 1).reshape(-1),
    "two views of a value": lambda self, x: (x * self.weight).split(2, dim=1),
    "a transposed value": lambda self, x: {"out": (x + 1).t()},
    "dropout of a value": lambda self, x: torch.nn.functional.dropout(x + 1, training=False),
    "changed buffers": update,
    "largest values": lambda self, x: tuple((x + self.weight).max(dim=1)),
    "rows in another order": lambda self, x: x.roll(1, 0),
}
CLEAR |= {f"{name}, then sizes": use_sizes(function) for name, function in CLEAR.items()}
CLEAR |= {
    "attention": use_sizes(
        lambda self, x: torch.nn.functional.scaled_dot_product_attention(*[x[None, None] + 1] * 3)
    ),
    "padding": use_sizes(lambda self, x: torch.nn.functional.pad(x + 1, (1, 1))),
    "repeated rows": use_sizes(lambda self, x: (x + 1).repeat(2, 1) * self.weight),
}
UNCLEAR = {
    "an input": lambda self, x: (x, x + 1),
    "a view of an input": lambda self, x: (x.t(), x + 1),
    "a buffer": lambda self, x: (x + 1, self.state),
    "dropout of an input": lambda self, x: torch.nn.functional.dropout(x, training=False),
    "a changed input": lambda self, x: x.add_(1) * 2,
    "a value twice": lambda self, x: (y := x + 1, y),
    "a number": lambda self, x: (x + 1, 3),
    "a size": lambda self, x: (x + 1, x.shape[0] * 2),
    "values that data select": lambda self, x: x[x > 1] * 2,
    "a branch": lambda self, x: torch.cond(x.sum() > 0, lambda y: y + 1, lambda y: y - 1, (x,)),
}
CASES = {**CLEAR, **UNCLEAR}
# Decomposed once, these have operators on symbolic sizes that were not traced.
CHANGING = {"a view of a value, then sizes"}
SLOW = {name for name in CASES if name.endswith("then sizes") and name not in CHANGING}
LEAST = {"numbers": None, "symbols": 3, "guarded symbols": 0}


def show(program):
    """Return everything in a program that later steps read."""
    nodes = [
        (
            node.format_node(),
            str(node.meta.get("val")),
            node.meta.get("stack_trace"),
            str(node.meta.get("nn_module_stack")),
            [source.name for source in node.meta.get("from_node", ())],
        )
        for node in program.graph.nodes
    ]
    return nodes, str(program.graph_signature), program.range_constraints


def save(function, least):
    """Return the archive of a program: float32 [n, 4] -> ..., n >= least, or n = 8."""
    shapes = ({0: Dim("n", min=least, max=64)},) if least is not None else None
    inputs = (torch.arange(32.0).reshape(8, 4),)
    archive = BytesIO()
    torch.export.save(export(Module(function).eval(), inputs, dynamic_shapes=shapes), archive)
    return archive


def decompose(archive, table):
    """Return a program decomposed twice as a text, and how often a program was run or replaced."""
    archive.seek(0)
    program = torch.export.load(archive)
    kinds = []

    def collect(original, called, **given):
        kinds.append("stand-in" if called.__code__.co_name == "stand_in" else "run")
        return original(called, **given)

    with wrapped(aot_autograd, "run_functionalized_fw_and_collect_metadata", collect):
        decomposed = program.run_decompositions(table)
        return (show(decomposed), show(decomposed.run_decompositions())), kinds


def list_cases():
    """Return each case with each kind of sizes, with a sample of those that need no guards."""
    pairs = [(case, sizes) for case in CASES for sizes in LEAST]
    quick = [(case, sizes) for case, sizes in pairs if case not in SLOW and sizes != "symbols"]
    slow = [(case, sizes) for case, sizes in pairs if (case in SLOW) != (sizes == "symbols")]
    return in_tiers(pairs, slow, quick)


@pytest.mark.parametrize("table", [{}, None], ids=["functional", "core"])
@pytest.mark.parametrize("case_and_sizes", list_cases(), ids=" with ".join)
def test_graphs_are_the_same(case_and_sizes, table):
    """Where sizes may be 0 or 1, running a program adds guards, which tracing relies on.

    The second decomposition finds the guards and the sizes that the first one has computed.
    """
    case, sizes = case_and_sizes
    least = LEAST[sizes]
    archive = save(CASES[case], least)
    expected, runs = decompose(archive, table)
    with replaced(_trace, "_aot_export_joint_with_descriptors", make_tracing):
        found, kinds = decompose(archive, table)
    assert found == expected
    assert runs == ["run", "run"]
    # Decomposed once, some unclear programs are clear.
    assert kinds[0] == ("stand-in" if case in CLEAR and least is None else "run")
    if case in CLEAR and case not in CHANGING:
        assert kinds[1] == "stand-in"
