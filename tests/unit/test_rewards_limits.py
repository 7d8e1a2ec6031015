"""verl_dots.rewards on hostile input and in the places where verl calls it: bounded, never raising, never evaluating."""

import asyncio
import builtins
import json
import multiprocessing
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.test_rewards import DIFFERENT, EQUAL
from verl_dots.rewards import compute_score, equivalence, extract, normalise, pool
from verl_dots.rewards.worker import MAX_RESIDENT

LIMIT = 0.5  # seconds of processor time in these tests


def score(response: str, gold: str = "5", **options) -> dict:
    return compute_score("any", response, gold, time_limit=LIMIT, **options)


HOSTILE = {
    "tower of powers": "\\boxed{10^{10^{10^{10}}}}",
    "long power": "\\boxed{9^{9999999999}}",
    "factorial": "\\boxed{(10^9)!!!}",
    "factorial of a factorial": "\\boxed{100000000!}",
    "binomial": "\\boxed{\\binom{10^{12}}{5 \\cdot 10^{11}}}",
    "long sum": "\\boxed{\\sum_{k=1}^{10^{12}} \\frac{1}{k^k}}",
    "nested fractions": "\\boxed{" + "\\frac{1}{1+" * 150 + "1" + "}" * 150 + "}",
    "nested roots": "\\boxed{" + "\\sqrt{" * 300 + "x" + "}" * 300 + "}",
    "nested parentheses": "\\boxed{" + "(" * 900 + ")" * 900 + "}",
    "expanding product": "\\boxed{(a+b+c+d+e+f)^{500} - (a+b+c+d+e+f)^{499}(f+e+d+c+b+a)}",
    "integral": "\\boxed{\\int_0^{\\infty} e^{-x^{x^{x}}} \\sin(\\tan(x^{77})) dx}",
    "megabyte of text": "word " * 200_000,
    "megabyte of braces": "{" * 500_000 + "}" * 500_000,
    "megabyte in a box": "\\boxed{" + "1" * 1_000_000 + "}",
    "megabyte of boxes": "\\boxed{" * 140_000,
    "megabyte of closed boxes": "\\boxed{1}" * 110_000,
    "megabyte of dollars": "$" * 1_000_000,
    "megabyte of digits": "9" * 1_000_000,
    "megabyte of digits and commas": "9,999" * 200_000,
    "megabyte of backslashes": "\\" * 1_000_000,
    "zero bytes": "\\boxed{\x00\x00}",
    "lone surrogate": "\\boxed{\ud800}",
    "right to left": "\\boxed{\u202e5\u202c6}",
    "python": "\\boxed{__import__('os').system('touch evaluated')}",
    "python in words": "\\boxed{\\text{__import__('os').system('touch evaluated')}}",
    "python last": "The answer is exec(\"open('evaluated', 'w')\")",
}


@pytest.mark.parametrize("response", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_responses_score_zero_within_bounds(response, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert score(response)["score"] == 0.0
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before  # kilobytes, of the process that asks
    assert grown < 300_000
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("gold", ["10^{10^{10^{10}}}", "(" * 500, "1" * 5000, "\ud800", "\x00", "\\frac{1}{0}"])
def test_hostile_ground_truths_score_zero(gold):
    assert score("\\boxed{5}", gold)["score"] == 0.0


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=300), st.text(max_size=40))
def test_any_text_gets_a_score(response, gold):
    for kind in ("math", "choice", "exact"):
        assert score(response, gold, kind=kind)["score"] in (0.0, 1.0)


@settings(max_examples=60, deadline=None)
@given(st.text(alphabet="0123456789\\frac{}^_$().,%+-=xe sqrtboxed", max_size=60))
def test_any_latex_soup_gets_a_score(soup):
    assert score(f"\\boxed{{{soup}}}", soup)["score"] in (0.0, 1.0)


def test_a_time_out_is_told_and_the_next_answer_is_scored():
    slow = "\\boxed{\\sum_{k=1}^{10^{12}} \\frac{1}{k^k}}"
    result = compute_score("any", slow, "\\frac{1}{7}", time_limit=0.3)
    assert (result["score"], result["timed_out"]) == (0.0, 1.0)
    assert score("\\boxed{0.5}", "1/2") == {"score": 1.0, "acc": 1.0, "pred": "0.5", "timed_out": 0.0}


def test_no_model_text_reaches_eval(monkeypatch):
    """The comparison itself, in this process: every case of the tables, with ``eval`` and ``exec`` taken away."""
    equivalence.equal("\\frac{1}{2}", "0.5")  # imports of sympy use exec, once

    def forbidden(*args, **kwargs):
        raise AssertionError(f"evaluated {args[0]!r}")

    monkeypatch.setattr(builtins, "eval", forbidden)
    monkeypatch.setattr(builtins, "exec", forbidden)
    for gold, answer in EQUAL + DIFFERENT:
        for pair in normalise.readings(gold, answer):
            equivalence.equal(*pair)
    python = [text for name, text in HOSTILE.items() if name.startswith("python")]
    for text in map(extract.math_answer, python):
        assert text
        equivalence.equal("5", normalise.for_parsing(text))


class TestWhereVerlCallsIt:
    def test_in_threads(self):
        """verl's reward managers run the function in an executor's threads, where signals cannot be used."""
        assert threading.current_thread() is threading.main_thread()
        with ThreadPoolExecutor(8) as executor:
            answers = list(executor.map(lambda i: score(f"\\boxed{{\\frac{{{i}}}{{7}}}}", "3/7")["score"], range(40)))
        assert answers == [float(i == 3) for i in range(40)]

    def test_one_slow_answer_does_not_spoil_its_neighbours(self):
        slow = ["\\boxed{\\sum_{k=1}^{10^{12}} \\frac{1}{k^k}}"] * 2
        right = ["\\boxed{0.5}"] * 6
        with ThreadPoolExecutor(8) as executor:
            results = list(executor.map(lambda text: score(text, "\\frac{1}{2}"), slow + right))
        assert [result["score"] for result in results] == [0.0] * 2 + [1.0] * 6
        assert [result["timed_out"] for result in results] == [1.0] * 2 + [0.0] * 6

    def test_in_an_event_loop(self):
        async def ask():
            loop = asyncio.get_running_loop()
            return await asyncio.gather(*[loop.run_in_executor(None, score, "\\boxed{2/4}", "1/2") for _ in range(8)])

        assert [result["score"] for result in asyncio.run(ask())] == [1.0] * 8

    def test_in_a_daemonic_process(self):
        """Where multiprocessing may not start children."""
        context = multiprocessing.get_context("spawn")
        with context.Pool(1) as processes:
            assert processes.apply(score, ("\\boxed{2/4}", "1/2"))["score"] == 1.0

    def test_after_a_fork(self):
        """Parent and child must not talk to one worker through one pipe."""
        assert score("\\boxed{2/4}", "1/2")["score"] == 1.0
        parent_pool = pool.shared_pool(2)
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            fresh = pool.shared_pool(2) is not parent_pool
            os.write(writing, json.dumps([fresh, score("\\boxed{3/6}", "1/2")["score"]]).encode())
            pool.close_all()
            os._exit(0)
        os.waitpid(child, 0)
        assert json.loads(os.read(reading, 100)) == [True, 1.0]
        assert score("\\boxed{4/8}", "1/2")["score"] == 1.0

    def test_a_worker_killed_from_outside_costs_one_answer(self):
        own = pool.Pool(1)
        assert own.equal([("\\frac{1}{2}", "0.5")], LIMIT) is True
        worker = own._places.queue[0]
        os.kill(worker._process.pid, signal.SIGKILL)
        worker._process.wait()
        assert own.equal([("\\frac{1}{2}", "0.5")], LIMIT) is None
        assert own.equal([("\\frac{1}{2}", "0.5")], LIMIT) is True
        own.close()

    def test_a_large_process_keeps_its_workers(self):
        """A child's peak memory starts at its parent's: a worker that looked at it would end after every answer."""
        ballast = bytearray(MAX_RESIDENT + (64 << 20))
        ballast[:: resource.getpagesize()] = b"1" * len(range(0, len(ballast), resource.getpagesize()))
        own = pool.Pool(1)
        assert own.equal([("\\frac{1}{2}", "0.5")], LIMIT) is True
        assert own._places.queue[0] is not None
        own.close()

    def test_a_worker_ends_with_the_process_that_asked(self):
        code = (
            "import os\nfrom verl_dots.rewards import compute_score, pool\n"
            "compute_score('', '\\\\boxed{2/4}', '1/2')\n"
            "print(pool.shared_pool(2)._places.queue[-1]._process.pid, flush=True)\nos._exit(0)\n"
        )
        worker = int(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)
        for _ in range(100):
            if not os.path.exists(f"/proc/{worker}"):
                return
            time.sleep(0.1)
        pytest.fail("the worker outlived the process that started it")

    def test_a_worker_that_cannot_start_is_an_error_not_a_score(self, monkeypatch):
        monkeypatch.setattr(sys, "executable", "/bin/false")
        with pytest.raises(RuntimeError, match="did not start"):
            pool.Pool(1).equal([("1", "2")], LIMIT)

    def test_too_few_workers_are_refused(self):
        with pytest.raises(ValueError, match="at least 1"):
            pool.Pool(0)


def test_nothing_heavy_is_imported_by_the_asking_process():
    code = "import sys, verl_dots.rewards; print([m for m in ('torch', 'sympy', 'math_verify') if m in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
