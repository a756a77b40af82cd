"""Quantized programs: close to the float program, delegated, and equal to upstream's results."""

import ast
import io
import weakref
from collections.abc import Sequence
from pathlib import Path

import executorch.export
import pytest
import torch
from executorch.backends.apple.coreml.quantizer._coreml_quantizer import _AnnotationPatternRegistry
from executorch.backends.apple.coreml.recipes import CoreMLRecipeType
from executorch.backends.xnnpack.quantizer.xnnpack_quantizer import (
    XNNPACKQuantizer,
    get_symmetric_quantization_config,
)
from executorch.backends.xnnpack.recipes import XNNPackRecipeType
from executorch.export import ExportRecipe
from executorch.export import export as export_by_recipe
from torch.export import Dim, export
from torchao.quantization.pt2e import move_exported_model_to_eval
from torchao.quantization.pt2e.export_utils import _assert_and_get_unique_device
from torchao.quantization.pt2e.quantize_pt2e import (
    convert_pt2e,
    prepare_pt2e,
    prepare_qat_pt2e,
)

from pipeline.backends import BACKENDS, QUANTIZERS, RECIPES, make_partitioners
from pipeline.compile.emit import emit
from pipeline.compile.inspect.delegation import describe_delegation
from pipeline.compile.lower import lower
from pipeline.devices.bindings import Package
from pipeline.devices.interface import PackageFiles
from pipeline.features.quantization.quantize import QuantizationNotes, quantize
from pipeline.features.remedies.explain_error import explain_error
from pipeline.program.archive import load_program, save_programs
from pipeline.program.inputs import InputSet
from pipeline.run.stages import Stages
from pipeline.run.worker_process import forget_programs
from pipeline.store.errors import ConfigErrors, PipelineError
from pipeline.store.releases import installed_release
from tests.support.bench import REPOSITORY
from tests.support.configs import parse_config
from tests.support.matrix import in_tiers
from tests.support.resident import run_python


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = torch.nn.Linear(64, 128), torch.nn.Linear(128, 64)

    def forward(self, x):
        return self.down(torch.relu(self.up(x)))


class Text(torch.nn.Module):
    """Two blocks of linear layers and a head."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers = torch.nn.ModuleList([Block(), Block()])
        self.head = torch.nn.Linear(64, 32, bias=False)

    def forward(self, x):
        for layer in self.layers:
            x = x + layer(x)
        return self.head(x)


class Image(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.conv = torch.nn.Conv2d(3, 8, 3)
        self.out = torch.nn.Linear(8, 4)

    def forward(self, x):
        x = torch.relu(self.conv(x))
        return self.out(x.mean((2, 3)))


TEXT, IMAGE = (3, 64), (1, 3, 8, 8)


def program_of(model, shape):
    torch.manual_seed(1)
    return export(model().eval().requires_grad_(False), (torch.randn(shape),), strict=True)


@pytest.fixture(scope="module")
def text():
    return program_of(Text, TEXT)


@pytest.fixture(scope="module")
def image():
    return program_of(Image, IMAGE)


def inputs_of(shape, count=4):
    generator = torch.Generator().manual_seed(7)
    return [InputSet((torch.randn(shape, generator=generator),)) for _ in range(count)]


def make_method_spec(**options):
    method = {"partitioners": [], "quantize": options}
    data = {"model": "m", "methods": {"f": method}}
    return parse_config("p", data, "p.yaml").methods["f"].quantize


def sqnr(program, quantized, inputs):
    """Return the least SQNR over the inputs, in dB."""
    found = []
    for each in inputs:
        with torch.no_grad():
            expected, actual = program.module()(*each.args), quantized.module()(*each.args)
        noise = (expected - actual).pow(2).mean()
        found.append(10 * torch.log10(expected.pow(2).mean() / noise).item())
    return min(found)


def lowered(program):
    """Return a method's package on XNNPACK, and what is delegated of it."""
    data = {"model": "m", "methods": {"forward": {"partitioners": ["xnnpack"]}}}
    (specs,) = (m.partitioners for m in parse_config("p", data, "p.yaml").methods.values())
    manager = lower({"forward": program}, {"forward": make_partitioners(specs)})
    delegation = describe_delegation(manager.exported_program("forward"))
    return emit(manager).buffer, delegation


def operators(program):
    return [str(n.target) for n in program.graph.nodes if n.op == "call_function"]


def archived(program, folder):
    """Return a program after a round trip through an archive, as actions pass it on."""
    file = io.BytesIO()
    save_programs({"forward": program}, file)
    (folder / "quantized.pt2").write_bytes(file.getvalue())
    return load_program(folder / "quantized.pt2", "forward")


# The result is close to the float program, is delegated, and survives an archive

XNNPACK = {"quantizer": "xnnpack", "per_channel": True}
INT4 = {"quantizer": "torchao", "scheme": "int8_dynamic_activation_int4_weight"}
SCHEMES = {
    "static": (XNNPACK, 25, 0.5),
    "dynamic": ({**XNNPACK, "dynamic": True}, 30, 0.5),
    "int8 weights": (
        {"quantizer": "torchao", "scheme": "int8_dynamic_activation_int8_weight", "group_size": 0},
        30,
        0.5,
    ),
    "int4 weights in groups": (INT4, 15, 0.35),
}


@pytest.fixture(scope="module")
def float_package(text):
    return lowered(text)[0]


@pytest.mark.parametrize("scheme", in_tiers(SCHEMES, [*SCHEMES][1:2]))
def test_linears_are_quantized_in_the_delegate(text, float_package, scheme, tmp_path):
    options, least, share = SCHEMES[scheme]
    spec = make_method_spec(**options)
    quantized = quantize(text, spec, inputs_of(TEXT) if spec.calibrates else [])
    assert sqnr(text, quantized, inputs_of(TEXT)) > least
    package, delegation = lowered(quantized)
    assert not [name for name in delegation["undelegated"] if name.startswith("aten.")]
    assert len(package) < share * len(float_package)
    assert lowered(archived(quantized, tmp_path))[0] == package


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("group_size", [0, 32])
def test_embeddings_are_looked_up_quantized(bits, group_size):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Embedding(50, 64), torch.nn.Linear(64, 50, bias=False))
    model[1].weight = model[0].weight  # tied, as in language models
    program = export(model.eval().requires_grad_(False), (torch.tensor([[1, 2, 3]]),))
    embedding = {"bits": bits, "group_size": group_size}
    quantized = quantize(program, make_method_spec(quantizer="torchao", embedding=embedding), [])
    inputs = [InputSet((torch.tensor([[7, 49, 0]]),))]
    assert sqnr(program, quantized, inputs) > {4: 15, 8: 40}[bits]
    assert any("embedding" in name and "aten" not in name for name in operators(quantized))
    assert "aten.linear.default" in operators(quantized)  # its weight stayed unchanged
    tables = [t for t in quantized.state_dict.values() if t.dtype in (torch.int8, torch.uint8)]
    assert [t.numel() for t in tables] == [50 * 64 * bits // 8]


def test_weight_only_on_xnnpack_which_would_store_floats_is_refused():
    method = {"quantize": {"quantizer": "torchao", "scheme": "int8_weight_only"}}
    for partitioners, refused in (([], False), (["xnnpack"], True)):
        data = {"model": "m", "methods": {"f": {**method, "partitioners": partitioners}}}
        if refused:
            with pytest.raises(
                ConfigErrors, match=("XNNPACK would store and compute with float weights")
            ):
                parse_config("p", data, "p.yaml")
        else:
            assert parse_config("p", data, "p.yaml")


def test_a_method_without_what_torchao_quantizes_is_left_as_it_is_with_a_warning(image, caplog):
    program = export(torch.nn.Sequential(torch.nn.ReLU()), (torch.ones(3),))
    quantized = quantize(program, make_method_spec(**INT4), [])
    assert [str(node.target) for node in quantized.graph.nodes][1] == "aten.relu.default"
    assert "torchao quantizes nothing in it" in caplog.text


def test_no_batch_is_held_while_others_are_observed(image):
    """A quantizer consumes the inputs as they arrive."""
    alive = weakref.WeakSet()
    most = 0

    class Reading(Sequence):
        def __len__(self):
            return 6

        def __getitem__(self, index):
            raise NotImplementedError

        def __iter__(self):
            nonlocal most
            for each in inputs_of(IMAGE, 6):
                tensor = each.args[0].clone()
                alive.add(tensor)
                most = max(most, len(alive))
                yield InputSet((tensor,))
                del tensor, each

    steps = []
    quantize(image, make_method_spec(**XNNPACK), Reading(), lambda *step: steps.append(step))
    assert steps == [(number, 6) for number in range(1, 7)]
    assert most <= 3


def test_no_quantized_module_outlives_its_action():
    module = torch.nn.Linear(2, 2)
    _assert_and_get_unique_device(module)
    kept = weakref.ref(module)
    del module
    assert kept() is not None  # otherwise torchao has fixed it, and its cache can stay
    forget_programs()
    assert kept() is None


def test_steps_of_quantizing_are_timed(image):
    stages, notes = Stages(), QuantizationNotes()
    sets = inputs_of(IMAGE, 2)
    with stages.stage("quantize"):
        quantize(image, make_method_spec(**XNNPACK), sets, notes=notes, step=stages.step)
    names = [name for name, *_ in stages.steps]
    call = ["compare with float", "observe", "compare with float"]
    judged = ["observed ranges", "compare with float"]
    assert names == ["prepare", *call * 2, *judged, "convert", "export again"]
    seconds = stages.seconds()
    assert sum(seconds.values()) == pytest.approx(stages.total)
    assert max(seconds, key=seconds.get) != "quantize"


# Mixed precision


class Sum(torch.nn.Module):
    """A linear layer on the sum of all inputs so far, and the number of calls."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer = torch.nn.Linear(4, 4)
        self.register_buffer("total", torch.zeros(1, 4))
        self.register_buffer("count", torch.zeros(1, dtype=torch.int64))

    def forward(self, x):
        self.total.add_(x)
        self.count.add_(1)
        return self.layer(self.total), self.count + 0


@pytest.mark.parametrize("dynamic", [False, True])
def test_state_is_after_quantizing_what_it_was_before(dynamic):
    """Neither calibration nor torch's constant folding changes it: no input affects the count."""
    model = Sum().eval().requires_grad_(False)
    program = export(model, (torch.ones(1, 4),))
    batches = [InputSet((torch.full((1, 4), float(n)),), {}, "calibration") for n in range(1, 4)]
    spec = make_method_spec(quantizer="xnnpack", dynamic=dynamic)
    quantized = quantize(program, spec, [] if dynamic else batches)
    for each in (quantized, program):
        assert each.state_dict["total"].tolist() == [[0, 0, 0, 0]]
        assert each.state_dict["count"].tolist() == [0]


class Derived(torch.nn.Module):
    """Takes `x` with 2 n rows and `y` with 2 n + 1."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.linear = torch.nn.Linear(8, 4)

    def forward(self, x, y):
        return self.linear((x + y[1:]).view(-1, 8))


@pytest.mark.slow
def test_derived_sizes_stay_derived_as_in_a_script_that_exports_again(tmp_path):
    n = Dim("n", min=2, max=9)
    args, shapes = (torch.randn(6, 4), torch.randn(7, 4)), ({0: 2 * n}, {0: 2 * n + 1})
    program = export(Derived().eval().requires_grad_(False), args, dynamic_shapes=shapes)
    prepared = prepare_pt2e(
        program.module(check_guards=False),
        XNNPACKQuantizer().set_global(get_symmetric_quantization_config(is_per_channel=True)),
    )
    prepared(*args)
    converted = convert_pt2e(prepared)
    move_exported_model_to_eval(converted)
    script = export(converted, args, dynamic_shapes=shapes)
    own = quantize(archived(program, tmp_path), make_method_spec(**XNNPACK), [InputSet(args)])
    ranges = sorted(map(str, script.range_constraints.values()))
    assert sorted(map(str, archived(own, tmp_path).range_constraints.values())) == ranges
    assert lowered(archived(own, tmp_path))[0] == lowered(script)[0]


def linears(program):
    """Return how each linear layer was quantized."""
    found = []
    for node in program.graph.nodes:
        if node.op == "call_function" and node.target is torch.ops.aten.linear.default:
            activation, weight = (str(node.args[place].target) for place in range(2))
            kind = "dynamic" if activation.endswith("per_tensor.tensor") else "static"
            found.append(kind if "dequantize" in weight else "float")
    return found


OVERRIDES = {
    "a module": ({"modules": {"layers.0": {"dynamic": True}}}, ["dynamic"] * 2 + ["static"] * 3),
    "none of it": ({"modules": {"head": "none"}}, ["static"] * 4 + ["float"]),
    "the innermost counts": (
        {"modules": {"layers.0": "none", "layers.0.down": {"dynamic": True}}},
        ["float", "dynamic"] + ["static"] * 3,
    ),
    "whatever the order": (
        {"modules": {"layers.0.down": {"dynamic": True}, "layers.0": "none"}},
        ["float", "dynamic"] + ["static"] * 3,
    ),
    "an operator": ({"operators": {"linear": {"dynamic": True}}}, ["dynamic"] * 5),
    "a module before an operator": (
        {"operators": {"linear": "none"}, "modules": {"head": {"per_channel": False}}},
        ["float"] * 4 + ["static"],
    ),
}


@pytest.mark.parametrize(("overrides", "expected"), OVERRIDES.values(), ids=OVERRIDES)
def test_overrides_take_effect(text, overrides, expected):
    spec = make_method_spec(**XNNPACK, **overrides)
    quantized = quantize(text, spec, inputs_of(TEXT))
    assert linears(quantized) == expected
    assert sqnr(text, quantized, inputs_of(TEXT)) > 25


def test_an_override_leaves_out_what_its_options_do_not_cover(text):
    """Additions can't be quantized dynamically: in a dynamic module they stay unchanged."""
    spec = make_method_spec(**XNNPACK, operators={"add": "none", "linear": {"dynamic": True}})
    names = operators(quantize(text, spec, inputs_of(TEXT)))
    assert "quantized_decomposed.quantize_per_tensor.default" not in names


@pytest.mark.slow
def test_fused_activations_go_with_what_they_follow(image):
    """Although the rectifier isn't in the module, the convolution is quantized together with it."""
    alone = quantize(image, make_method_spec(**XNNPACK, modules={"out": "none"}), inputs_of(IMAGE))
    module = make_method_spec(
        quantizer="xnnpack", operators={"linear": "none"}, modules={"conv": {"per_channel": True}}
    )
    assert operators(quantize(image, module, inputs_of(IMAGE))) == operators(alone)


def numbers(program):
    """Return scales, zero points and limits, in graph order."""
    calls = [node for node in program.graph.nodes if node.op == "call_function"]
    return [[a for a in node.args if isinstance(a, float | int)] for node in calls]


def test_one_override_is_upstreams_set_module_name(text):
    """For a module without fused activations, which upstream doesn't fuse in this case."""
    quantizer = XNNPACKQuantizer().set_module_name(
        "head", get_symmetric_quantization_config(is_per_channel=True)
    )
    prepared = prepare_pt2e(text.module(check_guards=False), quantizer)
    for inputs in inputs_of(TEXT):
        prepared(*inputs.args)
    theirs = export(convert_pt2e(prepared), inputs_of(TEXT)[0].args)
    spec = make_method_spec(
        **XNNPACK, modules={"layers.0": "none", "layers.1": "none"}, operators={"add": "none"}
    )
    ours = quantize(text, spec, inputs_of(TEXT))
    assert operators(ours) == operators(theirs)
    assert numbers(ours) == numbers(theirs)


WRONG = {
    "module": ({"modules": {"layers.7": "none"}}, "no module 'layers.7' in the program; did you"),
    "operator": ({"operators": {"conv2d": "none"}}, "no operator 'conv2d' in the program"),
}


@pytest.mark.parametrize(("overrides", "message"), WRONG.values(), ids=WRONG)
def test_an_override_for_nothing_is_refused(text, overrides, message):
    with pytest.raises(PipelineError, match=message):
        quantize(text, make_method_spec(**XNNPACK, **overrides), inputs_of(TEXT))


def test_an_override_that_quantizes_nothing_is_refused():
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Softmax(-1))
    program = export(model.eval().requires_grad_(False), (torch.randn(2, 8),))
    spec = make_method_spec(**XNNPACK, modules={"1": {"per_channel": False}})
    with pytest.raises(
        PipelineError,
        match=("module '1' has no operators that xnnpack quantizes with these options"),
    ):
        quantize(program, spec, [InputSet((torch.randn(2, 8),))])


def test_ranges_of_activations_take_effect(text):
    spec = make_method_spec(**XNNPACK, act_qmin=-100, act_qmax=100)
    quantized = quantize(text, spec, inputs_of(TEXT))
    ranges = {
        n.args[3:5] for n in quantized.graph.nodes if "quantize_per_tensor.default" in str(n.target)
    }
    assert ranges == {(-100, 100)}


# ExecuTorch's recipes


NEW_RECIPES = ("arm_", "coreai_")  # in ExecuTorch 1.5


def installed_recipes():
    """Return the values of all recipe enums in the installed executorch.

    They are read from the sources, since some can't be imported here.
    """
    folder = Path(executorch.export.__file__).parent.parent
    found = set()
    for path in folder.glob("backends/**/*recipe_types.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef) and any(
                isinstance(base, ast.Name) and base.id == "RecipeType" for base in node.bases
            ):
                found |= {
                    s.value.value
                    for s in node.body
                    if isinstance(s, ast.Assign) and isinstance(s.value, ast.Constant)
                }
    return found


def test_recipes_are_the_installed_ones():
    new = {name for name in RECIPES if name.startswith(NEW_RECIPES)}
    recipes = set(RECIPES) if installed_release().minor >= (1, 5) else {*RECIPES} - new
    assert recipes == installed_recipes() and new
    assert [name for name, recipe in RECIPES.items() if "refused" in recipe] == [
        "coreml_codebook_weight_only",
        "qnn_fp16",
        *(name for name in RECIPES if name in new),
    ]


class Small(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.up, self.down = torch.nn.Linear(64, 96), torch.nn.Linear(96, 32)

    def forward(self, x):
        return self.down(torch.relu(self.up(x)))


# A single recipe shows quickly whether recipes match upstream's. Core ML's quantizer exports
# hundreds of patterns first, so only one of its quantizing recipes is lowered, and all are
# compared.
QUICK = {"coreml_fp16"}
COMPARED = [CoreMLRecipeType.PT2E_INT8_STATIC, CoreMLRecipeType.PT2E_INT8_WEIGHT_ONLY]
SAMPLE = [
    CoreMLRecipeType.PT2E_INT8_STATIC,
    XNNPackRecipeType.PT2E_INT8_STATIC_PER_CHANNEL,
    XNNPackRecipeType.TORCHAO_INT8_DYNAMIC_ACT_INT4_WEIGHT_PER_CHANNEL,
]
KINDS = in_tiers(
    [
        kind
        for kind in [*XNNPackRecipeType, *CoreMLRecipeType]
        if kind not in COMPARED[1:] and "refused" not in RECIPES[kind.value]
    ],
    SAMPLE,
    [kind for kind in CoreMLRecipeType if kind.value in QUICK],
)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: getattr(kind, "value", None))
def test_a_recipe_gives_upstreams_bytes(kind, monkeypatch):
    """Core ML's quantizer first exports all known patterns, in 50 s: here only the model's."""
    rules = _AnnotationPatternRegistry.REGISTRY
    rules_of_model = {name: rules[name] for name in ("linear_act", "linear")}
    monkeypatch.setattr(_AnnotationPatternRegistry, "REGISTRY", rules_of_model)
    inputs = inputs_of((2, 64))
    with BACKENDS["coreml"].preprocessing.around():
        session = export_by_recipe(
            model=Small().eval().requires_grad_(False),
            example_inputs=[each.args for each in inputs],
            export_recipe=ExportRecipe.get_recipe(kind),
        )
    data = {"model": "m", "methods": {"forward": {"recipe": kind.value}}}
    method = parse_config("p", data, "p.yaml").methods["forward"]
    program = export(Small().eval().requires_grad_(False), inputs[0].args, strict=True)
    if method.quantize is not None:
        calibration = inputs if method.quantize.calibrates else []
        program = quantize(program, method.quantize, calibration)
    manager = lower({"forward": program}, {"forward": make_partitioners(method.partitioners)})
    assert emit(manager).buffer == session.get_pte_buffer()


@pytest.mark.parametrize("kind", COMPARED, ids=lambda kind: kind.value)
def test_a_recipe_makes_upstreams_quantizer(kind):
    (theirs,) = ExportRecipe.get_recipe(kind).quantization_recipe.quantizers
    data = {"model": "m", "methods": {"forward": {"recipe": kind.value}}}
    spec = parse_config("p", data, "p.yaml").methods["forward"].quantize
    ours = QUANTIZERS["coreml"].make_quantizer(spec)
    assert ours._config.as_dict() == theirs._config.as_dict()


RECIPE_MISTAKES = {
    "unknown": ({"recipe": "xnnpack_fp23"}, "methods.f.recipe: unknown recipe 'xnnpack_fp23'; did"),
    "beside": (
        {"recipe": "xnnpack_fp32", "partitioners": []},
        "methods.f.partitioners: can't be combined with a recipe, which already sets it; keep one",
    ),
    "refused": ({"recipe": "qnn_fp16"}, "methods.f.recipe: 'qnn_fp16' is not available: it means"),
}


@pytest.mark.parametrize(("method", "message"), RECIPE_MISTAKES.values(), ids=RECIPE_MISTAKES)
def test_wrong_recipes_are_refused(method, message):
    with pytest.raises(ConfigErrors) as errors:
        parse_config("p", {"model": "m", "methods": {"f": method}}, "p.yaml")
    assert message in str(errors.value)


# Programs that are already quantized


@pytest.mark.slow
def test_a_program_that_was_trained_quantized_is_lowered_as_it_is(text, tmp_path, caplog):
    """With quantization-aware training: fake quantizers during training, converted and saved."""
    quantizer = XNNPACKQuantizer().set_global(
        get_symmetric_quantization_config(is_per_channel=True, is_qat=True)
    )
    torch.manual_seed(0)
    trained = export(Small().train(), (torch.randn(2, 64),)).module(check_guards=False)
    prepared = prepare_qat_pt2e(trained, quantizer)
    optimizer = torch.optim.SGD(prepared.parameters(), lr=0.1)
    for inputs in inputs_of((2, 64)):
        optimizer.zero_grad()
        prepared(*inputs.args).pow(2).mean().backward()
        optimizer.step()
    move_exported_model_to_eval(prepared)
    converted = convert_pt2e(prepared).requires_grad_(False)
    torch.export.save(export(converted, (torch.randn(2, 64),)), tmp_path / "trained.pt2")
    loading = (
        "import sys\nfrom pathlib import Path\nfrom pipeline.program.archive import load_program\n"
        "load_program(Path(sys.argv[1]), 'model')"
    )
    assert run_python("-c", loading, str(tmp_path / "trained.pt2")).returncode == 0
    program = load_program(tmp_path / "trained.pt2", "model")
    package, delegation = lowered(program)
    assert delegation["undelegated"].keys() <= {
        "quantized_decomposed.quantize_per_tensor.default",
        "quantized_decomposed.dequantize_per_tensor.default",
    }
    assert len(package) < 0.5 * len(lowered(export(Small().eval(), (torch.randn(2, 64),)))[0])
    (tmp_path / "trained.pte").write_bytes(package)
    (x,) = inputs_of((2, 64))[0].args
    (actual,) = Package(PackageFiles.of(tmp_path / "trained.pte")).run("forward", [x])
    assert torch.allclose(actual, program.module()(x), atol=0.05)
    quantize(program, make_method_spec(**XNNPACK), inputs_of((2, 64)))
    assert "it is quantized already" in caplog.text


class Masked(torch.nn.Module):
    """Indexes with computed integers, as the attention masks of transformers' BERT do."""

    def __init__(self):
        super().__init__()
        self.embedding, self.linear = torch.nn.Embedding(10, 8), torch.nn.Linear(8, 8)

    def forward(self, ids, mask):
        rows, columns = torch.arange(ids.shape[0])[:, None], torch.arange(ids.shape[1])[None] + 0
        kept = mask.bool()[rows, columns * 1][..., None]
        return self.linear(self.embedding(ids)) * 0.5 * kept


def masked(quantizer: str, offset: int = 0):
    with torch.no_grad():
        inputs = torch.arange(6).reshape(2, 3), torch.ones(2, 3, dtype=torch.long)
        program = export(Masked().eval().requires_grad_(False), inputs)
    calibration = InputSet((inputs[0] + offset, inputs[1]))
    method = {"quantize": {"quantizer": quantizer}, "partitioners": []}
    spec = parse_config("p", {"model": "m", "methods": {"run": method}}, "p.yaml").methods["run"]
    return program, quantize(program, spec.quantize, [calibration]), inputs


@pytest.mark.parametrize("quantizer", ["xnnpack", "vulkan"])
def test_integers_stay_integers(quantizer):
    program, quantized, inputs = masked(quantizer)
    added = quantized.graph.find_nodes(op="call_function", target=torch.ops.aten.add.Tensor)
    assert [node.meta["val"].dtype for node in added] == [torch.int64]
    expected, actual = program.module()(*inputs), quantized.module()(*inputs)
    torch.testing.assert_close(actual, expected, atol=0.05, rtol=0.05)


def test_what_fails_while_inputs_are_observed_has_its_line():
    with pytest.raises(IndexError) as caught:
        masked("xnnpack", offset=5)
    explained = explain_error(caught.value, REPOSITORY)
    assert explained.startswith("tests/features/quantization/test_quantize.py:")
    assert "self.linear(self.embedding(ids))" in explained
