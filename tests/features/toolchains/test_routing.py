"""Each package is planned by its toolchain, and a command line is split accordingly."""

import pytest

from pipeline.features.toolchains.planning import ToolchainPlanning
from pipeline.features.toolchains.routing import HERE, ROUTED, VARIABLE, divide, split_command
from pipeline.plan.plan import Plan
from pipeline.store.workspace import open_workspace
from tests.support.bench import bench_of

PACKAGES = {HERE: ["vision", "speech"], "et15": ["vision-next"]}


@pytest.mark.parametrize(
    ("words", "here", "there"),
    [
        (["lower"], ["lower"], ["lower"]),
        (["lower", "-n", "4"], ["lower", "-n", "4"], ["lower", "-n", "4"]),
        (["lower", "speech"], ["lower", "speech"], None),
        (["lower", "vision-next"], None, ["lower", "vision-next"]),
        (["lower:vision-next", "-a"], None, ["lower:vision-next", "-a"]),
        (["validate", "vision*"], ["validate", "vision*"], ["validate", "vision*"]),
        (["plan", "speech", "vision-next/a"], ["plan", "speech"], ["plan", "vision-next/a"]),
        (["diff", "main"], ["diff", "main"], ["diff", "main"]),
        (["lower", "visoin"], ["lower", "visoin"], ["lower", "visoin"]),
    ],
)
def test_words_go_to_the_toolchains_of_the_packages_that_they_name(words, here, there):
    parts = divide(words, PACKAGES)
    assert (parts.get(HERE), parts.get("et15")) == (here, there)


@pytest.fixture
def mixed(tmp_path):
    """A workspace with a matrix of two toolchains, one of which need not exist."""
    bench = bench_of("archives", tmp_path)
    for config in (bench.root / "partition_configs").glob("*"):
        config.unlink()
    (bench.root / "partition_configs" / "one.yaml").write_text(
        "model: one\nmatrix: {toolchain: [default, et15]}\ntoolchain: ${matrix.toolchain}\n"
        "methods: {encode: {partitioners: []}, decode: {partitioners: []}}\n"
    )
    settle(bench.root, 'et15 = ".venv-et15"')
    return bench


def settle(root, *lines):
    text = "\n".join(["[tool.pte-pipeline.toolchains]", *lines])
    (root / "pyproject.toml").write_text(f"{text}\n")


def packages_of(root):
    return Plan(open_workspace(root)).packages


def test_a_process_sees_the_packages_of_its_toolchain(mixed, monkeypatch):
    assert packages_of(mixed.root) == ("one-default",)
    monkeypatch.setenv(VARIABLE, "et15")
    assert packages_of(mixed.root) == ("one-default", "one-et15")  # as `--toolchain` selects
    monkeypatch.setenv(ROUTED, "1")
    assert packages_of(mixed.root) == ("one-et15",)


def test_a_command_line_is_split_where_configs_name_toolchains(mixed):
    split = split_command(["lower"], mixed.root)
    assert split is not None
    assert split[0] == ["lower"]
    here, _ = split_command(["lower", "one-et15"], mixed.root)
    assert here is None
    assert split_command(["auto"], mixed.root) is None
    settle(mixed.root)
    assert split_command(["lower"], mixed.root) is None


def test_a_config_with_mistakes_goes_to_its_toolchain(mixed):
    """They may be valid in the catalogue of another ExecuTorch."""
    config = mixed.root / "partition_configs" / "one.yaml"
    config.write_text("model: one\ntoolchain: et15\nmethods: {forward: {partitioners: [new]}}\n")
    assert packages_of(mixed.root) == ()


def test_a_toolchain_that_the_settings_lack_is_a_mistake(mixed):
    config = mixed.root / "partition_configs" / "one.yaml"
    config.write_text(config.read_text().replace("et15", "et16"))
    plan = Plan(open_workspace(mixed.root))
    assert plan.packages == ("one-default", "one-et16")
    [problem] = plan.problems("one-et16")
    assert problem.path == "toolchain"
    assert problem.what == "no toolchain 'et16'"
    assert "did you mean 'et15'?" in problem.known
    assert ToolchainPlanning(plan).problem_facts("one-et16") == ["et15"]


@pytest.mark.slow
def test_parts_run_one_after_another(tmp_path, mixed, twin):
    """`doit plan` for both packages: the other toolchain's package is planned by its Python."""
    settle(mixed.root, f'et15 = "{twin}"')
    assert mixed.process("plan") == 0, mixed.output
    lines = mixed.output.splitlines()
    assert [line.split()[1] for line in lines if line.startswith("link")] == [
        "one-default",
        "one-et15",
    ]
    assert mixed.process("plan", "one-et15") == 0, mixed.output
    assert "one-default" not in mixed.output
