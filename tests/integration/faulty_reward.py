"""Named as verl's reward function by test_faults.py: wrong in the way that $DOTS_FAULT says.

One reward worker scores every answer, so that a count of calls tells the steps apart (128 calls in the first).
"""

import os
import threading
import time

FAULT = os.environ.get("DOTS_FAULT", "")
CALLS_OF_A_STEP = 128
_calls = 0
_questions: set[str] = set()
_lock = threading.Lock()


def compute_score(data_source, solution_str, ground_truth, extra_info=None, **kwargs):
    global _calls
    question = extra_info["question_id"]
    with _lock:
        _calls += 1
        call, new = _calls, question not in _questions
        _questions.add(question)
        number = len(_questions)
    if FAULT == "raises, a string, then NaN":
        if new and number == 3:
            raise RuntimeError("this reward function fails for the third question")
        if new and number == 5:
            return "correct"
        if call > CALLS_OF_A_STEP:
            return float("nan")
    if FAULT == "only zeros, then hangs":
        if call > 3 * CALLS_OF_A_STEP:
            time.sleep(3600)
        return 0.0
    return float(solution_str == ground_truth)
