"""Named as verl's reward function by test_faults.py: right at first, then wrong in the way that $DOTS_FAULT says.

One reward worker scores every answer, so that a count of calls tells the steps apart (128 calls in the first).
"""

import os
import threading

FAULT = os.environ.get("DOTS_FAULT", "")
FIRST_STEP = 128
_calls = 0
_lock = threading.Lock()


def compute_score(data_source, solution_str, ground_truth, extra_info=None, **kwargs):
    global _calls
    with _lock:
        _calls += 1
        call = _calls
    if FAULT == "raises once, then NaN":
        if call == 10:
            raise RuntimeError("this reward function fails at its tenth call")
        if call > FIRST_STEP:
            return float("nan")
    if FAULT == "only zeros":
        return 0.0
    return float(solution_str == ground_truth)
