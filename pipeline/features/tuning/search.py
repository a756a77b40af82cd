"""Searches for the best variants of one package, batch by batch, with cheap figures first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from pipeline.features.tuning.estimates import find_hopeless
from pipeline.features.tuning.figures import (
    CHEAP,
    find_faults,
    is_time,
    read_figures,
    read_held_out,
    split_limit,
)
from pipeline.features.tuning.guided import Batches, can_guide, follow_estimates
from pipeline.features.tuning.ranking import (
    describe_violations,
    measure_violations,
    parse_limits,
)
from pipeline.features.tuning.sampler import sample
from pipeline.features.tuning.screening import (
    Screening,
    can_screen,
    limits_prediction,
)
from pipeline.features.tuning.space import (
    Choice,
    Space,
    compose_choice,
    find_choice_problems,
)
from pipeline.features.tuning.trials import Trial, TrialFolder
from pipeline.plan.plan import Plan


class Search:
    """The search for one package.

    Attributes:
        space: the alternatives.
        objectives, limits: what trials are judged by.
        names: the figures of objectives and limits.
        seed: the seed of the sampler.
        number: the maximum number of trials.
        trials: the trials that were built, in the order in which they were requested; if no trial
            equals the present config, that config comes first.
        present: the name of the present config's trial.
        screening: the predictions; None if everything is tried, or nothing can be predicted.
        folder: where trials are built.
    """

    def __init__(
        self,
        plan: Plan,
        package: str,
        number: int | None = None,
        tries_all: bool = False,
    ) -> None:
        config: Any = getattr(plan.config(package), "tune")  # noqa: B009 - mypy knows no such field
        self.space = Space(plan.workspace, package, plan.document(package))
        self.objectives = dict(config.objectives)
        self.limits = parse_limits(config.limits)
        figures = [*self.objectives, *(split_limit(name)[1] for name in self.limits)]
        self.names = list(dict.fromkeys(figures))
        self.seed = config.seed
        self.number = min(number or config.trials, self.space.size)
        if tries_all:
            self.number = self.space.size
        self.trials: list[Trial] = []
        self.present = ""
        self.folder = TrialFolder(plan.workspace, package)
        self.screening: Screening | None = None
        helps = can_guide(self.objectives) or limits_prediction(self.limits)
        if helps and can_screen(self.space) and not tries_all:
            self.screening = Screening(self.space)
        self._plan = plan

    def run(self) -> Iterator[tuple[int, int]]:
        """Build the trials; yield the number built so far, and the greatest number to build."""
        with self.folder.held():
            yield from self._build_batches()
            self.folder.drop_others()

    def _build_batches(self) -> Iterator[tuple[int, int]]:
        self.present, _ = self.folder.identify(compose_choice(self.space, None))
        batches = self._begin_batches()
        yield 0, self.number
        # The present config joins the first batch, which saves a doit run of its own.
        present, *trials = self._try([None, *next(batches, ())])
        self.trials = trials
        yield len(self.trials), self.number
        with suppress(StopIteration):
            while True:
                trials = self._try(batches.send(trials))
                self.trials += trials
                yield len(self.trials), self.number
        # A combination may mean the same as the present config.
        if all(trial.name != self.present for trial in self.trials):
            self.trials.insert(0, present)

    def _begin_batches(self) -> Batches:
        """Return a generator of combinations to try, after predicting figures if possible."""
        excluded: set[Choice] = set()
        if self.screening is not None:
            self.screening.run(self._plan, self.folder)
            if can_guide(self.objectives):
                return follow_estimates(
                    self.screening,
                    self.space,
                    self.present,
                    self.number,
                    self.objectives,
                    self.limits,
                )
            excluded = find_hopeless(self.screening, self.limits)
        return sample(self.space, self.number, self.seed, self.objectives, excluded)

    def _try(self, choices: Sequence[Choice | None]) -> list[Trial]:
        """Build and validate variants, except those that break a limit on a cheap figure."""
        errors: dict[str, str] = {}
        trials: list[Trial] = []
        number = len(self.trials)
        for choice in choices:
            if choice is not None:
                number += 1
            trials.append(self._begin(0 if choice is None else number, choice))
        names = [trial.name for trial in trials if trial.name]
        is_timed = any(map(is_time, self.names))
        if is_timed or any(split_limit(name)[1] in CHEAP for name in self.limits):
            errors |= self.folder.build("lower", names)
            names = [name for name in names if name not in errors and self._holds(name)]
        errors |= self.folder.build("validate", names, one_by_one=is_timed)
        return [self._judge(trial, errors.get(trial.name, "")) for trial in trials]

    def _begin(self, number: int, choice: Choice | None) -> Trial:
        """Write the config of a variant, and return its trial.

        If the parser refuses the config, the trial has a fault and no name.
        """
        problems = () if choice is None else find_choice_problems(self.space, choice)
        name = ""
        if not problems:
            name = self.folder.add(compose_choice(self.space, choice))
        faults = tuple(str(problem) for problem in problems[:1])
        return Trial(number, choice, name, {}, {}, faults, ())

    def _holds(self, name: str) -> bool:
        """Return whether a variant that was lowered is within the limits on cheap figures."""
        figures = read_figures(self.folder.find(name), CHEAP)
        return not any(describe_violations(figures, self.limits, CHEAP))

    def _judge(self, trial: Trial, error: str) -> Trial:
        if not trial.name:
            return trial
        if error:
            return trial._replace(faults=(error,))
        folder = self.folder.find(trial.name)
        figures = read_figures(folder, self.names)
        held_out = read_held_out(folder, self.names)
        cheap_faults = list(describe_violations(figures, self.limits, CHEAP))
        # A variant that was not validated has no known accuracy, which breaks no limit.
        names = CHEAP if cheap_faults else self.names
        faults = list(describe_violations(figures, self.limits, names))
        if not cheap_faults:
            faults += find_faults(folder)
            faults += self._find_held_out_faults(held_out)
            lacking = [name for name in self.objectives if name not in figures]
            faults += [f"its report has no figure {name}" for name in lacking]
        return trial._replace(
            figures=figures,
            held_out=held_out,
            faults=tuple(dict.fromkeys(faults)),
            violations=measure_violations(figures, self.limits, self.names),
        )

    def _find_held_out_faults(self, held_out: Mapping[str, float]) -> list[str]:
        """Return which limits a trial breaks on the inputs that played no part in the choice.

        A limit that holds only by chance is not met.
        """
        sentences = describe_violations(held_out, self.limits, list(held_out))
        return [f"{sentence}, on held-out inputs" for sentence in sentences]
