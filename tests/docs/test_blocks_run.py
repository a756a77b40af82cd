"""The configs of README and the guides build successfully, each with its page's models, and the
commands of the reference run in the resulting workspace."""

import json
import re
import shutil
import subprocess
import textwrap

import pytest
import yaml

from tests.docs.block_checks import commands_of
from tests.docs.blocks import ALL, Block, read_blocks
from tests.support.bench import REPOSITORY, SAMPLES, Bench
from tests.support.lowerable import MODEL
from tests.support.patches import python_path
from tests.support.resident import run_python

pytestmark = pytest.mark.slow

# README's description of models/classifier.py: programs `features`, `classify` and `embed`.
CLASSIFIER = '''
"""A trunk with a head, and a table of vectors for the classes."""

import torch
from torch import nn
from torch.export import export


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Conv2d(3, 8, 3, stride=2), nn.ReLU())
        self.head = nn.Linear(8, 10)

    def forward(self, images):
        return self.head(self.trunk(images).mean((2, 3), keepdim=True).flatten(1))


class Embed(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(10, 16)

    def forward(self, classes):
        return self.table(classes)


def images(seed):
    return (torch.rand(1, 3, 16, 16, generator=torch.Generator().manual_seed(seed)),)


def export_methods():
    torch.manual_seed(0)
    model = Classifier().eval().requires_grad_(False)
    embed = Embed().eval().requires_grad_(False)
    return {
        "features": export(model.trunk, images(0)),
        "classify": export(model, images(0)),
        "embed": export(embed, (torch.tensor([1, 2]),)),
    }


def example_inputs(method):
    return [(torch.tensor([3, 9]),)] if method == "embed" else [images(1), images(2)]


def calibration_inputs(method):
    return example_inputs(method) if method == "embed" else [images(n) for n in range(3, 9)]
'''
# The same without `embed`, for the guide on quantization.
TWO_METHODS = CLASSIFIER.replace('        "embed": export(embed, (torch.tensor([1, 2]),)),\n', "")
SPEECH = """
import torch
from torch import nn
from torch.export import export


def inputs(seed):
    return (torch.rand(2, 8, generator=torch.Generator().manual_seed(seed)),)


def export_methods():
    torch.manual_seed(1)
    methods = {name: nn.Linear(8, 8).requires_grad_(False) for name in ("encode", "decode")}
    return {name: export(module, inputs(0)) for name, module in methods.items()}


def example_inputs(method):
    return [inputs(1)]
"""


def block_of(page: str, begins: str) -> Block:
    (block,) = (block for block in read_blocks(page) if block.text.startswith(begins))
    return block


def write(root, files: dict[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


def git(root, *words):
    author = ["-c", "user.name=x", "-c", "user.email=x@example.com"]
    subprocess.run(["git", *author, *words], cwd=root, check=True, capture_output=True)


README = block_of("README.md", "model: classifier")
QUANTIZE = "docs/guides/quantize.md"


@pytest.fixture(scope="module")
def shop(tmp_path_factory):
    """A workspace from README and the guides, built without allowing any verdict."""
    root = tmp_path_factory.mktemp("documented") / "shop"
    quantized = yaml.safe_load(block_of(QUANTIZE, "model: classifier").text)
    limits = yaml.safe_load(block_of(QUANTIZE, "validate:").text)
    extended = "docs/guides/configs.md"
    vision = yaml.safe_load(README.text) | {"target": "phone"}
    vision["validate"] = {**vision["validate"], "bundle": True}
    write(
        root,
        {
            "dodo.py": block_of("docs/tutorial.md", "from pte_pipeline.tasks").text,
            "pyproject.toml": block_of(extended, '[tool.pte-pipeline]\nvariables = ["T').text,
            "models/classifier.py": CLASSIFIER,
            "models/classes.py": TWO_METHODS,
            "models/asr-small.py": SPEECH,
            "models/asr-large.py": SPEECH,
            "models/asr.py": SPEECH,
            "partition_configs/classifier-phone.yaml": README.text,
            "partition_configs/classes-int8.yaml": yaml.safe_dump(
                {**quantized, **limits, "model": "classes"}
            ),
            "partition_configs/_phone.yaml": block_of(extended, "target: ${TARGET").text,
            "partition_configs/asr.yaml": block_of(extended, "extends: _phone\nmodel: asr-$").text,
            # Packages with the names that the reference uses
            "partition_configs/vision.yaml": yaml.safe_dump(vision),
            "partition_configs/speech.yaml": "extends: _phone\nmodel: asr\n"
            "matrix: {of: [asr]}\npackage: ${matrix.of}\n"
            "methods: {encode: {}, decode: {}}\n",
        },
    )
    bench = Bench(root, allow="")
    (root / ".gitignore").write_text("build\n.store\n.doit*\n__pycache__\n")
    assert bench.doit(CI="") == 0, bench.output
    bench.first_output = bench.output
    git(root, "init", "--quiet", "-b", "main")
    git(root, "add", ".")
    git(root, "commit", "--quiet", "-m", "built")
    git(root, "tag", "v2")
    return bench


def gates_of(bench, package):
    record = json.loads(bench.bytes_of(package, "report.json"))
    return {(gate["gate"], gate["method"]): gate for gate in record["gates"]}


def test_the_config_of_readme_passes_and_says_what_its_gates_leave_alone(shop):
    record = json.loads(shop.bytes_of("classifier-phone", "report.json"))
    assert (record["verdict"], record["failures"], record["allow"]) == ("passed", [], [])
    gates = gates_of(shop, "classifier-phone")
    assert gates["max_size_growth", None]["left_alone"] == "no baseline"
    assert gates["min_delegated_nodes", "embed"]["left_alone"] == "no partitioners"
    assert gates["min_delegated_nodes", "classify"]["figure"] >= 0.9
    line = "no baseline yet: classifier-phone, vision; `doit baseline` records one"
    assert line in shop.first_output
    page = shop.bytes_of("classifier-phone", "report.md").decode()
    assert "no baseline yet" in page and "no partitioners, by choice" in page
    junit = shop.bytes_of("classifier-phone", "junit.xml").decode()
    assert junit.count("<skipped") >= 2 and "<failure" not in junit


def test_without_a_baseline_the_gate_of_readme_fails_in_ci_alone(shop):
    assert shop.doit("validate", "classifier-phone", CI="true") == 1
    assert "max_size_growth: no baseline; `doit baseline classifier-phone`" in shop.output
    assert shop.doit("baseline", "classifier-phone") == 0, shop.output
    assert shop.doit("validate", "classifier-phone", CI="true") == 0, shop.output
    (shop.root / "baselines" / "classifier-phone.yaml").unlink()
    assert shop.doit("validate", "classifier-phone", CI="") == 0, shop.output
    assert "no baseline yet: classifier-phone; `doit baseline classifier-phone`" in shop.output
    assert shop.doit("validate", "classifier-phone", CI="") == 0, shop.output
    assert "no baseline yet: classifier-phone" in shop.output  # even if it is up to date


def test_a_resolved_config_is_as_the_guide_shows_it(shop):
    block = block_of("docs/guides/configs.md", "# asr-small-int8:")
    assert shop.doit("plan", "--resolved", "asr-small-int8") == 0, shop.output
    printed = {" ".join(line.split()) for line in shop.output.splitlines()}
    lines = [" ".join(line.split()) for line in block.text.splitlines() if line != "..."]
    assert [line for line in lines if line not in printed] == []


def test_the_files_of_a_build_are_those_that_the_guide_lists(shop):
    block = block_of("docs/reference/reports.md", "build/")
    folder, missing = shop.root, []
    for line in block.text.splitlines():
        depth = (len(line) - len(line.lstrip())) // 2
        names = re.split(r" {3,}", line.strip())[0].split(", ")
        folder = [shop.root, shop.root / "build", shop.root / "build" / "vision"][depth]
        missing += [name for name in names if not (folder / name).exists()]
    assert missing == ["reproduce/"]  # written only on failure


def test_the_folders_of_the_store_are_those_that_the_guide_lists(shop):
    block = block_of("docs/concepts/cache.md", "blobs/")
    for line in block.text.splitlines():
        for name in re.split(r" {3,}", line)[0].split():
            top = name.partition("/")[0]
            assert (shop.store / top).exists(), name


# Lines that can't run here, and why
NOT_RUN = {
    "doit init shop && cd shop && doit": "tests/cli/test_tasks.py runs it",
    "doit auto vision": "tests/cli/test_auto.py; it never ends",
    "doit verify release key.pub": "below, where a release is attested",
    "doit verify --commit $(git rev-parse v2) release key.pub": "below",
    "doit attest vision": "below: it needs a key",
    "doit publish vision --to s3://bucket/models": "tests/features/publish; it needs a bucket",
    "doit publish --to file:///srv/models --dry-run": "tests/features/publish",
    "doit fetch s3://bucket/models android-arm64": "likewise",
    "doit fetch https://models.example/ ios vision assets": "likewise",
    'eval "$(pte completion bash)"': "tests/features/help runs it in each shell",
    'eval "$(pte completion zsh)"': "likewise",
    "pte completion fish | source": "likewise",
    "doit sensitivity vision-int8": "tests/features/sensitivity; nothing is quantized here",
    "doit sensitivity vision-int8 --floor 30 --write": "likewise",
    "doit sensitivity vision-int8 --metric top1 --write": "likewise",
    "doit sensitivity vision --against portable": "tests/features/sensitivity; many builds",
    "doit pretrained smol": "tests/features/transformers/test_exported.py; it needs an extra",
    "doit upgrade et15": "tests/features/toolchains; it needs another environment",
    "doit upgrade et15 vision": "likewise",
    "doit contract vision --on pi5": "tests/features/contracts/test_packages.py; it needs a board",
    "doit tune vision": "tests/features/tuning; its config has no space",
    "doit tune vision --write best": "likewise",
    "doit tune vision asr --max-size 10MB": "likewise",
    "doit tune --target phone --max-memory 4MB": "likewise",
    "doit profile vision/classify": "tests/features/native/test_runner.py; it needs an SDK",
    "doit profile vision/classify --on qemu:cortex-a72 --repeats 3": "likewise",
}
VERBS = [
    line.partition("  #")[0].strip()
    for block in ALL
    if block.page == "docs/reference/verbs.md" and block.language == "sh"
    for line in block.text.splitlines()
]


def test_the_commands_of_the_reference_run(shop):
    """Run one after the other, in the order of the page."""
    shutil.copytree(shop.root / "build", shop.root.parent / "other" / "build", dirs_exist_ok=True)
    assert len(VERBS) > 25 and {*NOT_RUN} <= {*VERBS}
    assert shop.doit("baseline") == 0, shop.output  # the baseline for `doit diff`
    failed = []
    for line in VERBS:
        if line not in NOT_RUN:
            ((_, *words),) = commands_of(line)
            if shop.doit(*words) != 0:
                failed.append(f"{line}\n{shop.output}")
    assert failed == []
    assert (shop.root / "baselines" / "vision.yaml").is_file()
    assert (shop.root / "targets" / "here.yaml").is_file()


def test_the_guide_on_attesting_signs_and_verifies(shop):
    block = next(b for b in ALL if b.page == "docs/guides/attesting.md" and b.language == "sh")
    *keys, attest = block.text.splitlines()
    for line in keys:
        subprocess.run(line, shell=True, cwd=shop.root, check=True, capture_output=True)
    setting, _, words = attest.partition(" doit ")
    name, value = setting.split("=")
    assert shop.doit("validate", "vision", CI="") == 0, shop.output
    # Run outside CI, like the line before: in CI a comparing gate would ask for a baseline.
    assert shop.doit(*words.split(), **{name: value, "CI": ""}) == 0, shop.output
    shutil.copytree(shop.root / "build" / "vision", shop.root / "release")
    assert shop.doit("verify", "release", "key.pub") == 0, shop.output
    assert re.search(r"vision\.pte\.intoto\.jsonl: \d+ files as attested, signed by", shop.output)
    (shop.root / "release" / "more.so").write_bytes(b"")
    assert shop.doit("verify", "release", "key.pub") == 1
    assert "more.so: is not in any attestation" in shop.output


def run(bench, code):
    environment = {**bench.environment, "PYTHONPATH": python_path(REPOSITORY)}
    done = run_python("-c", code, cwd=bench.root, env=environment)
    assert done.returncode == 0, done.stderr


def test_the_python_of_readme_runs(shop):
    block = next(block for block in ALL if (block.page, block.language) == ("README.md", "python"))
    run(shop, f"import torch\nimages = torch.rand(1, 3, 16, 16)\n{block.text}\nscores + 0")


def test_a_bundled_program_is_verified_as_the_guide_does(shop):
    run(shop, block_of("docs/reference/reports.md", "import json").text)


# Configs of backends, for the model of the backends' tests

# Backends whose configs are only parsed here, with the reason; tests/backends/ builds each one if
# possible.
NOT_BUILT = {
    **dict.fromkeys(("openvino", "ethos-u", "vgf", "tosa", "cortex_m"), "needs an extra"),
    "webgpu": "is lowered to in many small partitions, which takes minutes",
}
# The model, with only additions and subtractions in `features`.
SUMS = MODEL.replace("torch.relu(self.second(torch.relu(self.first(x))))", "x + x - 1")
SUMS = SUMS.replace("8 * 4 * 4", "3 * 8 * 8")


def backends_of(block: Block) -> set[str]:
    """Return the names of the partitioners in a config."""
    names = set()
    for method in yaml.safe_load(block.text)["methods"].values():
        for each in method["partitioners"]:
            names |= {each} if isinstance(each, str) else {*each}
    return names


def test_the_configs_of_backends_are_built(tmp_path):
    files = {"models/small.py": MODEL, "models/sums.py": SUMS}
    for block in read_blocks("docs/reference/backends.md"):
        # tests/backends/ builds the enumerated shapes of another model, and the NPU gates.
        is_package = block.language == "yaml" and "model: small" in block.text
        names = backends_of(block) if is_package else {*NOT_BUILT}
        if names.isdisjoint(NOT_BUILT):
            name = min(names)
            model = "sums" if name == "add_sub" else "small"
            text = block.text.replace("model: small", f"model: {model}")
            files[f"partition_configs/{name}.yaml"] = text
    assert len(files) == 5, sorted(files)  # Vulkan, Core ML, add_sub
    write(tmp_path, {"dodo.py": "from pte_pipeline.tasks import *\n", **files})
    bench = Bench(tmp_path)  # phones and boards: not run here
    assert bench.doit() == 0, bench.output


@pytest.mark.parametrize(
    ("name", "begins"),
    [
        ("adapters", "model: assistant"),
        pytest.param("lengths", "model: encoder", marks=pytest.mark.release),
    ],
)
def test_the_examples_of_families_are_built(name, begins, tmp_path):
    source = REPOSITORY / "examples" / name
    shutil.copytree(source, tmp_path / name, ignore=shutil.ignore_patterns("build", ".*"))
    (config,) = (tmp_path / name / "partition_configs").glob("*.yaml")
    shown = block_of("docs/guides/adapters.md", begins).text
    assert yaml.safe_load(shown).items() <= yaml.safe_load(config.read_text()).items()
    config.write_text(shown)
    bench = Bench(tmp_path / name, allow="")
    assert bench.doit() == 0, bench.output


LANGUAGE_MODEL = """
import torch
from torch import nn
from torch.export import export


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(16, 8)
        self.head = nn.Linear(8, 16)
        self.register_buffer("cache", torch.zeros(1, 8))


class Prefill(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, tokens):
        self.model.cache.copy_(self.model.embed(tokens).sum(1))
        return self.model.head(self.model.cache)


class Decode(Prefill):
    def forward(self, tokens):
        self.model.cache.add_(self.model.embed(tokens).sum(1))
        return self.model.head(self.model.cache)


def example_inputs(method):
    return [(torch.tensor([[1, 2, 3]] if method == "prefill" else [[7]]),)]


def export_methods():
    torch.manual_seed(0)
    model = Model().eval().requires_grad_(False)
    methods = {"prefill": Prefill(model), "decode": Decode(model)}
    return {name: export(each, example_inputs(name)[0]) for name, each in methods.items()}
"""


def test_the_config_of_the_guide_on_language_models_is_built(tmp_path):
    files = {
        "dodo.py": "from pte_pipeline.tasks import *\n",
        "models/language_model.py": LANGUAGE_MODEL,
        "partition_configs/language_model.yaml": block_of(
            "docs/guides/language-models.md", "model: language_model"
        ).text,
    }
    write(tmp_path, files)
    bench = Bench(tmp_path, allow="")
    assert bench.doit() == 0, bench.output
    record = json.loads(bench.bytes_of("language_model", "report.json"))
    runs = [run for method in record["methods"] for run in method["runs"]]
    assert any("prefill > decode" in run.get("sequence", "") for run in runs)  # one cache


@pytest.mark.parametrize("begins", ["model: decoder", "model: llama"])
def test_the_smaller_configs_are_built(begins, tmp_path):
    """Build operator libraries and exporter parameters."""
    text = block_of("docs/guides/configs.md", begins).text
    if begins == "model: llama":
        files = {"models/llama.py": LLAMA, "partition_configs/llama.yaml": text}
    else:
        shutil.copytree(SAMPLES / "operators" / "operators", tmp_path / "operators")
        config = yaml.safe_load(text)
        config["operators"].remove("operators/libteam.so")  # needs a compiler
        model = (SAMPLES / "operators" / "models" / "scaled.py").read_text()
        methods = yaml.safe_load((SAMPLES / "operators/partition_configs/scaled.yaml").read_text())
        files = {
            "models/decoder.py": model,
            "partition_configs/decoder.yaml": yaml.safe_dump({**methods, **config}),
        }
    write(tmp_path, {"dodo.py": "from pte_pipeline.tasks import *\n", **files})
    bench = Bench(tmp_path, allow="")
    assert bench.doit() == 0, bench.output


LLAMA = textwrap.dedent(
    '''
    """The parameters of docs/guides/configs.md, of a linear layer."""

    import torch
    from torch import nn
    from torch.export import export


    def export_methods(dtype="fp32", max_seq_len=128):
        own = torch.float16 if dtype == "fp16" else torch.float32
        model = nn.Linear(8, 8).to(own).requires_grad_(False)
        inputs = (torch.ones(1, 8, dtype=own),)
        return {name: export(model, inputs) for name in ("prefill", "decode", "audio")}


    def constant_methods(max_seq_len=128):
        return {"get_max_seq_len": max_seq_len}
    '''
)
