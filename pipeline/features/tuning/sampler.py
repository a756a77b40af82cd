"""Chooses which combinations of a space are tried, in batches.

A space that is no larger than the number of trials is tried completely: a sampler could only miss
combinations. From a larger one, Optuna's TPE sampler chooses, for several objectives with
constraints.

The study is not stored. An interrupted search begins again with the same seed and asks for the same
combinations, whose results are in the store. A sampler that continued from a stored study would
have lost the state of its random generator, and would ask for other combinations than an
uninterrupted one.
"""

from __future__ import annotations

import itertools
import random
import warnings
from collections.abc import Collection, Generator, Sequence
from typing import Any

from pipeline.features.tuning.ranking import Objectives
from pipeline.features.tuning.space import Choice, Space
from pipeline.features.tuning.trials import Trial
from pipeline.store.errors import PipelineError, plural

_BATCH = 4  # trials that are built at once; a constant, so that all machines ask for the same
_MOST_REPEATS = 20  # of tried combinations, before a random one is drawn
_VIOLATIONS = "violations"
_LARGE = 1e9  # the violation of a trial that could not be built

Batches = Generator[Sequence[Choice], Sequence[Trial], None]


def sample(
    space: Space,
    number: int,
    seed: int,
    objectives: Objectives,
    excluded: Collection[Choice] = (),
) -> Batches:
    """Yield combinations to try, at most `number`, and receive the trials of each batch.

    Args:
        excluded: combinations that are not worth a trial.

    Raises:
        PipelineError: the space is larger than `number`, and Optuna is not installed.
    """
    if space.size - len(excluded) <= number:
        # All at once, since there is nothing to learn between batches.
        yield [choice for choice in space.list_choices() if choice not in excluded]
        return
    yield from _sample_with_optuna(space, number, seed, objectives, excluded)


def _sample_with_optuna(
    space: Space,
    number: int,
    seed: int,
    objectives: Objectives,
    excluded: Collection[Choice],
) -> Batches:
    study, distributions = _open_study(space, number, seed, objectives)
    tried = set(excluded)
    most = len(tried) + number
    while len(tried) < most:
        batch: list[Any] = []
        choices: list[Choice] = []
        for _ in range(min(_BATCH, most - len(tried))):
            asked, choice = _ask(study, distributions, space, tried, seed)
            tried.add(choice)
            batch.append(asked)
            choices.append(choice)
        trials = yield choices
        for asked, trial in zip(batch, trials, strict=True):
            _tell(study, asked, trial, objectives)


def _open_study(
    space: Space, number: int, seed: int, objectives: Objectives
) -> tuple[Any, dict[str, Any]]:
    """Return a study in memory, and the distribution of each axis."""
    try:
        import optuna
    except ImportError as error:
        hint = "`pip install 'pte-pipeline[tune]'`"
        trials = f"`--trials {space.size}` tries all"
        fault = f"a space of {space.size:,} combinations and {plural(number, 'trial')} needs Optuna"
        raise PipelineError(f"{space.package}: {fault}; {hint}, or {trials}") from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        sampler = optuna.samplers.TPESampler(
            seed=seed,
            n_startup_trials=max(_BATCH, number // 4),
            constant_liar=True,  # otherwise a batch would consist of neighbours
            constraints_func=lambda frozen: frozen.user_attrs[_VIOLATIONS],
        )
    words = {"min": "minimize", "max": "maximize"}
    directions = [words[direction] for direction in objectives.values()]
    study = optuna.create_study(sampler=sampler, directions=directions)
    distributions: dict[str, Any] = {}
    for name, nodes in space.axes.items():
        # Alternatives have no order, even if they are numbers.
        numbers = range(len(nodes))
        distributions[name] = optuna.distributions.CategoricalDistribution(numbers)
    return study, distributions


def _ask(
    study: Any,
    distributions: dict[str, Any],
    space: Space,
    tried: set[Choice],
    seed: int,
) -> tuple[Any, Choice]:
    """Return a trial of the study with a combination that was not tried yet."""
    from optuna.trial import TrialState

    for _ in range(_MOST_REPEATS):
        asked = study.ask(distributions)
        choice = tuple(asked.params[name] for name in space.axes)
        if choice not in tried:
            return asked, choice
        study.tell(asked, state=TrialState.FAIL)  # the sampler ignores failed trials
    choice = _draw_untried(space, tried, seed)
    # Enqueued because the study learns only from trials that it has asked for.
    study.enqueue_trial(dict(zip(space.axes, choice, strict=True)))
    return study.ask(distributions), choice


def _draw_untried(space: Space, tried: set[Choice], seed: int) -> Choice:
    """Return an untried combination, which depends only on the seed and the tried combinations."""
    generator = random.Random(seed + len(tried))
    numbers = [range(len(nodes)) for nodes in space.axes.values()]
    for _ in range(_MOST_REPEATS):
        choice = tuple(generator.choice(axis) for axis in numbers)
        if choice not in tried:
            return choice
    untried = (choice for choice in itertools.product(*numbers) if choice not in tried)
    return next(untried)


def _tell(study: Any, asked: Any, trial: Trial, objectives: Objectives) -> None:
    """Report the result of a trial to the sampler; if it has faults, only violations count."""
    violations = list(trial.violations)
    if trial.faults and not any(violation > 0 for violation in violations):
        violations.append(_LARGE)
    else:
        violations.append(0.0)
    asked.set_user_attr(_VIOLATIONS, violations)
    # An unknown figure counts as 0; its violation keeps it from looking good.
    study.tell(asked, [trial.figures.get(name, 0.0) for name in objectives])
