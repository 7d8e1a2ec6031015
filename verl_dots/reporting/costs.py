"""Figures of rollout replay (size, age, weights) and of where seconds and tokens go."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.ticker import EngFormatter, PercentFormatter

from verl_dots.reporting.compare import Comparison
from verl_dots.reporting.quantities import step_seconds, tokens_per_step
from verl_dots.reporting.runs import Run
from verl_dots.reporting.style import GREY, Look, Picture, axes_grid, draw_noisy, legend_above

_REPLAY = (
    ("replay/size", "groups held", False),
    ("replay/drawn", "groups drawn per step", False),
    ("replay/age_mean", "mean age, policy versions", False),
    ("replay/weight_max", "largest weight, before cutting", False),
    ("replay/truncated_share", "weights cut, share of tokens", True),
    ("replay/effective_sample_size", "effective sample size", True),
)
_PART_LOOKS = {  # colour and hatch; neighbours differ in grey too
    "rollouts": ("#0072B2", ""),
    "reference rollouts": ("#56B4E9", "//"),
    "prediction and selection": ("#CC79A7", ""),
    "rewards": ("#F0E442", ""),
    "log-probs and weights": ("#56B4E9", ""),
    "reference policy": ("#999999", ".."),
    "critic": ("#B07AA1", "//"),
    "advantages": ("#444444", ""),
    "critic update": ("#8C6D31", "//"),
    "policy update": ("#D55E00", ""),
    "weights to the rollout engine": ("#F0E442", "xx"),
    "checkpoint": ("#009E73", ""),
    "other": ("#C9C9C9", ""),
    "validation": ("#FFFFFF", "////"),
}


def replay_picture(runs: Sequence[Run], looks: dict[str, Look]) -> Picture:
    """Size, age and weights of the replay."""
    key, title = "replay", "Rollout replay"
    shown = [run for run in runs if run.get("replay/drawn").values.any()]
    if not shown:
        return Picture(key, title, "", missing="no run trained on replayed rollouts")
    figure, grid = axes_grid(2, 3, 1.9)
    for axes, (name, label, is_share) in zip(grid.flat, _REPLAY, strict=True):
        for run in shown:
            if run.get(name):
                draw_noisy(axes, run.get(name), looks[run.name])
        if name == "replay/drawn":
            for run in shown:
                draw_noisy(axes, run.get("replay/filled"), looks[run.name], linewidth=0.9)
        axes.set_title(label, fontsize=8.5)
        if is_share:
            axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0 if name.endswith("size") else None))
        if name in ("replay/size", "replay/drawn", "replay/age_mean", "replay/truncated_share"):
            axes.set_ylim(bottom=0)
    for axes in grid[1]:
        axes.set_xlabel("steps")
    legend_above(figure, grid[0, 0].get_lines())
    caption = (
        "In the second panel the thinner line is how many of the drawn groups took the place of an uninformative or failed "
        "fresh group. Weights are those of replayed tokens, new policy over the policy that wrote them. The effective "
        "sample size, (sum w)^2 / (n sum w^2), is the share of the replayed tokens that still counts: when it falls, "
        "replayed rollouts are too old (dots.replay.max_age)."
    )
    return Picture(key, title, caption, figure)


def seconds_picture(comparison: Comparison, looks: dict[str, Look]) -> Picture:
    """Mean seconds of a step by part, and generated tokens per step."""
    key, title = "seconds", "Where the seconds go"
    parts = {item.run.name: step_seconds(item.run) for item in comparison.runs}
    parts = {name: found for name, found in parts.items() if found}
    if not parts:
        return Picture(key, title, "", missing="no run logged verl's timers (timing_s/...)")
    figure, grid = axes_grid(2, 1, 0.75 + 0.21 * len(parts) + 0.62)
    bars, lines = grid[:, 0]
    labels = [label for label in _PART_LOOKS if any(label in found for found in parts.values())]
    names = list(parts)[::-1]
    left = dict.fromkeys(names, 0.0)
    widest = max(sum(found.values()) for found in parts.values())
    for label in labels:
        widths = [parts[name].get(label, 0.0) for name in names]
        colour, hatch = _PART_LOOKS[label]
        drawn = bars.barh(names, widths, left=[left[name] for name in names], height=0.62, label=label, color=colour,
                          edgecolor="white" if colour != "#FFFFFF" else "#888888", linewidth=0.6, hatch=hatch)  # fmt: skip
        for name, width, bar in zip(names, widths, drawn, strict=True):
            left[name] += width
            if width > 0.05 * widest:
                bars.text(bar.get_x() + width / 2, bar.get_y() + bar.get_height() / 2, f"{width:.2g}", ha="center",
                          va="center", fontsize=7.5, color="black",
                          bbox={"boxstyle": "round,pad=0.15", "fc": "white", "ec": "none", "alpha": 0.8})  # fmt: skip
    bars.set_yticks(range(len(names)), [looks[name].label for name in names])
    bars.grid(axis="y", visible=False)
    bars.set_xlabel("seconds per step")
    figure.legend(*bars.get_legend_handles_labels(), loc="outside upper left", ncols=4, handlelength=1.4)
    for item in comparison.runs:
        series, _ = tokens_per_step(item.run)
        if series:
            draw_noisy(lines, series, looks[item.run.name])
    lines.set(xlabel="steps", ylabel="tokens per step")
    lines.yaxis.set_major_formatter(EngFormatter(sep=""))
    lines.set_ylim(0, 1.35 * lines.get_ylim()[1])  # room for the legend
    if lines.lines:
        lines.legend(loc="upper right", ncols=4)
    else:
        lines.text(0.5, 0.5, "not logged", transform=lines.transAxes, ha="center", color=GREY)
    caption = (
        "Top: mean over all steps but the first, from verl's timers; what no timer covers is other, and validation, which "
        "verl times outside of the step, is spread over all steps. Bottom: response tokens generated per step."
    )
    return Picture(key, title, caption, figure)
