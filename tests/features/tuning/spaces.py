"""Spaces of configs in a folder, without models."""

from types import SimpleNamespace

from pipeline.features.tuning.space import Space, find_space_problems
from tests.support.configs import environment, read_configs

CONFIG = """\
# The smallest package.
model: pair
target: phone   # a label
defaults:
  partitioners: [xnnpack]  # for all
methods:
  encode: {}
  decode:
    # as it was
    partitioners: [xnnpack]
tune:
  space:
SPACE
"""
SPACE = """\
    methods.decode.quantize: [null, {quantizer: xnnpack, per_channel: true}]
    defaults.partitioners: [[xnnpack], []]"""


def write_config(folder, space=SPACE, config=CONFIG, name="pair"):
    configs = folder / "partition_configs"
    configs.mkdir(exist_ok=True)
    path = configs / f"{name}.yaml"
    path.write_text(config.replace("SPACE", space))
    return path


def workspace_at(folder):
    return SimpleNamespace(
        root=folder,
        configs=folder / "partition_configs",
        environment=environment(),
        build=folder / "build",
    )


def space_of(path, package="pair"):
    workspace = workspace_at(path.parent.parent)
    document = read_configs(path.parent).documents[package]
    return Space(workspace, package, document)


def problems_of(path, package="pair"):
    """Return the mistakes in a space, as lines."""
    read = read_configs(path.parent)
    if package in read.problems:
        return [str(problem) for problem in read.problems[package]]
    document = read.documents[package]
    methods = list(read.configs[package].methods)
    workspace = workspace_at(path.parent.parent)
    return [str(p) for p in find_space_problems(workspace, package, document, methods)]
