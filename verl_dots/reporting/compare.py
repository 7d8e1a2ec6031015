"""How much sooner a run reaches the baseline's final accuracy: the paper's three reductions (arXiv 2506.05316, table 1).

The target is the accuracy of the baseline at its last validation; a run reaches it at its first validation at or above. The
paper counts the baseline's whole run. A noisy baseline may have touched its own final accuracy earlier, and a first crossing
favours whoever is measured by it; so the reductions against the baseline's own first crossing are computed as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from verl_dots.reporting.quantities import accuracy, at, common_benchmarks, cumulative, seconds, tokens_per_step
from verl_dots.reporting.readers import Series
from verl_dots.reporting.runs import Run


@dataclass(frozen=True)
class Cost:
    """What a run had spent after `step`; None where it was not logged."""

    step: int
    accuracy: float
    seconds: float | None
    tokens: float | None

    @property
    def seconds_per_step(self) -> float | None:
        return None if self.seconds is None or not self.step else self.seconds / self.step


@dataclass(frozen=True)
class Reductions:
    """Shares saved against the baseline: 0.3 means 30 % less, negative means more; None where not logged.

    `1 - total = (1 - steps) * (1 - per_step)`.
    """

    steps: float
    per_step: float | None
    total: float | None
    tokens: float | None

    @classmethod
    def of(cls, cost: Cost, baseline: Cost) -> Reductions:
        def saved(mine: float | None, theirs: float | None) -> float | None:
            return None if mine is None or not theirs else 1.0 - mine / theirs

        return cls(
            steps=1.0 - cost.step / baseline.step,
            per_step=saved(cost.seconds_per_step, baseline.seconds_per_step),
            total=saved(cost.seconds, baseline.seconds),
            tokens=saved(cost.tokens, baseline.tokens),
        )


@dataclass(frozen=True)
class Progress:
    """Accuracy of a run and what it cost.

    Attributes:
        run: the run.
        accuracy: at each validation, step 0 included where it was measured.
        seconds: running total after each step; `seconds_how` says how it was measured.
        tokens: running total of generated response tokens; `tokens_how` says how they were counted.
    """

    run: Run
    accuracy: Series
    seconds: Series
    seconds_how: str
    tokens: Series
    tokens_how: str

    @classmethod
    def of(cls, run: Run, sources: Sequence[str]) -> Progress:
        per_step, tokens_how = tokens_per_step(run)
        total_seconds, seconds_how = seconds(run)
        return cls(run, accuracy(run, sources), total_seconds, seconds_how, cumulative(per_step), tokens_how)

    def cost(self, place: int) -> Cost:
        """Cost at validation number `place`."""
        step = int(self.accuracy.steps[place])
        return Cost(step, float(self.accuracy.values[place]), at(self.seconds, step), at(self.tokens, step))

    def reaches(self, target: float) -> Cost | None:
        """Cost at the first validation after step 0 at or above `target`."""
        for place, (step, value) in enumerate(zip(self.accuracy.steps, self.accuracy.values, strict=True)):
            if step > 0 and value >= target:
                return self.cost(place)
        return None


@dataclass(frozen=True)
class Verdict:
    """One run against the baseline. `reached` is None when it never got there; then the reductions are None too."""

    progress: Progress
    reached: Cost | None
    against_end: Reductions | None  # the paper's
    against_first: Reductions | None


@dataclass(frozen=True)
class Comparison:
    """All runs against one baseline.

    Attributes:
        sources: the data sources whose mean is the accuracy.
        runs: every run with its progress, in the order given.
        baseline: the run compared with; None for no comparison.
        why_not: why there is none, a sentence for the page.
        target: final accuracy of the baseline.
        end: cost of the whole baseline; `first`: cost when it first reached its own final accuracy.
        spacing: steps between two validations, the resolution of every step count here.
        verdicts: the other runs.
    """

    sources: list[str]
    runs: list[Progress]
    baseline: Progress | None = None
    why_not: str = ""
    target: float | None = None
    end: Cost | None = None
    first: Cost | None = None
    spacing: int = 0
    verdicts: tuple[Verdict, ...] = ()


def compare(runs: Sequence[Run], baseline: Run | None = None, sources: Sequence[str] | None = None) -> Comparison:
    """Measure every run and, where there is a baseline, compare with it.

    Args:
        runs: at least one.
        baseline: one of them; None picks the only run without verl-dots, if there is exactly one among several.
        sources: data sources to average; None takes those that every validated run has.
    """
    sources = list(sources) if sources else common_benchmarks(runs)
    progress = [Progress.of(run, sources) for run in runs]
    plain = [run for run in runs if not run.uses_dots]
    if baseline is None and len(runs) > 1 and len(plain) == 1:
        baseline = plain[0]
    if baseline is None:
        many = f"{', '.join(run.name for run in plain)} are all without verl-dots" if plain else "all runs use verl-dots"
        why = "one run alone: give a second one as the baseline" if len(runs) == 1 else f"{many}: name one with --baseline"
        return Comparison(sources, progress, why_not=f"No run to compare with ({why}).")
    base = next(item for item in progress if item.run is baseline)
    if not len(base.accuracy) or base.accuracy.steps[-1] == 0:
        return Comparison(sources, progress, base, f"{baseline.name} has no validation after step 0, so there is no target.")
    target = float(base.accuracy.values[-1])
    if base.accuracy.steps[0] == 0 and target <= base.accuracy.values[0]:
        why = f"{baseline.name} ends no better than it began ({target:.3f}), so reaching its final accuracy means nothing."
        return Comparison(sources, progress, base, why, target)
    end, first = base.cost(-1), base.reaches(target)
    verdicts = tuple(_verdict(item, target, end, first) for item in progress if item is not base)
    spacing = max((int(step) for step in base.accuracy.steps[1:] - base.accuracy.steps[:-1]), default=end.step)
    return Comparison(sources, progress, base, "", target, end, first, spacing, verdicts)


def _verdict(item: Progress, target: float, end: Cost, first: Cost) -> Verdict:
    reached = item.reaches(target)
    if reached is None:
        return Verdict(item, None, None, None)
    return Verdict(item, reached, Reductions.of(reached, end), Reductions.of(reached, first))
