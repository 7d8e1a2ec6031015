"""Results of study runs with known numbers."""

import json


def study_result(method, generation, groups, accuracy=(0.4, 0.6), seed=1, steps=4, task="pool_x", boot="here"):
    """A run of `steps` steps: of each, generation takes `generation` s and the rest 1 s; accuracies at start and end."""
    constant = {
        "seconds": generation + 1.0,
        "seconds_gen": generation,
        "seconds_old_log_prob": 0.5,
        "seconds_update_actor": 0.5,
        "generated_tokens": 10.0 * groups,
        "trained_tokens": 80.0,
        "generated_groups": float(groups),
        "trained_informative": 0.5,
        "fresh_informative": 0.25,
    }
    return {
        "task": task,
        "method": method,
        "seed": seed,
        "steps": steps,
        "batch": 8,
        "machine": {"boot": boot},
        "curve": {"step": [0, steps], "accuracy": list(accuracy)},
        "per_step": {name: [value] * steps for name, value in constant.items()},
    }


def write_runs(path, methods):
    """One run of each method: {name: (seconds of generation, groups)}."""
    path.write_text("".join(json.dumps(study_result(name, *numbers)) + "\n" for name, numbers in methods.items()))
