"""The reward of the arithmetic task, in the form of verl's `reward.custom_reward_function`. Imports nothing."""


def compute_score(data_source, solution_str, ground_truth, extra_info=None, **kwargs) -> float:
    """1.0 if the whole response is the expected one, otherwise 0.0.

    verl hands over the response without special tokens, so the end token does not show; a response that goes on
    past the answer has more digits than it and is wrong.
    """
    return float(solution_str == ground_truth)
