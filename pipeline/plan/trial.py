"""Plans of trials: the workspace's sources and store, with other configs and a `build/` apart."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from pipeline.plan.plan import Plan
from pipeline.store.workspace import Workspace

TRIAL_CONFIGS = "partition_configs"
TRIAL_BUILD = "build"


def make_trial_plan(workspace: Workspace, folder: Path) -> Plan:
    """Return a plan that reads configs from and builds into subfolders of `folder`.

    The last export of each model counts as current.
    """
    trials = replace(workspace, build_folder=folder / TRIAL_BUILD)
    # A cached property that only this process reads: workers get configs in their requests.
    vars(trials)["configs"] = folder / TRIAL_CONFIGS
    plan = Plan(trials)
    plan.trust_last_exports()
    return plan
