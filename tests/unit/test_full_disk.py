"""Full and read-only disks: an error that names the file, nothing half-written, and what was there before still whole.

A child process mounts a small tmpfs of its own (user namespaces, or root); skipped where the system forbids that. What the
system never forbids is a limit on the size of a file: the same failure in the middle of a write, under another name.
"""

from __future__ import annotations

import functools
import resource
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

WRITERS = {
    "embeddings": """
        import numpy as np
        from verl_dots.embeddings import write_embeddings
        from verl_dots.types import question_id
        ids = [question_id(str(i)) for i in range(4096)]
        write = lambda: write_embeddings(folder / "x.safetensors", ids, np.ones((4096, 64)), model="m")
    """,
    "questions": """
        from verl_dots.difficulty.observations import QuestionLog
        from verl_dots.types import Observation, question_id
        log = QuestionLog(folder, steps_per_part=1)
        seen = [Observation(question_id(str(i)), 1, "explored", 1.0, 8, i / 20000) for i in range(20000)]
        write = lambda: log.append(1, seen)
    """,
    "metrics": """
        from verl_dots.runlog import MetricsLog
        log = MetricsLog(folder / "metrics.jsonl")
        write = lambda: [log.append(step, {"x" * 1000: 1.0}) for step in range(1000)]
    """,
    "rows": """
        import torch
        from verl_dots.integration import saved
        rows = torch.nested.as_nested_tensor([torch.arange(4000) for _ in range(64)], layout=torch.jagged)
        write = lambda: saved.write_rows(folder / "rows-00000.safetensors", [str(i) for i in range(64)], {"responses": rows})
    """,
    "cli": """
        from verl_dots.files import atomic_path
        def write():
            with atomic_path(folder / "out.parquet") as path:
                path.write_bytes(b"x" * 1000000)
    """,
}
PROGRAM = """
import sys
from pathlib import Path
folder = Path(sys.argv[1])
for name, source in {writers!r}.items():
    exec(source)
    try:
        write()
        print(name, "| written |")
    except Exception as error:
        said = " ".join(str(error).split()), getattr(error, "filename", None)
        print(name, "|", type(error).__name__, "|", *said, "|", *sorted(path.name for path in folder.iterdir()))
    for path in folder.iterdir():
        path.unlink()
"""


@functools.cache
def can_mount() -> bool:
    command = ["unshare", "-rm", "sh", "-c", "mount -t tmpfs tmpfs /mnt"]
    try:
        return subprocess.run(command, capture_output=True, timeout=30).returncode == 0
    except FileNotFoundError:
        return False


def check(command: list, program: Path, folder: Path, expected: str, preexec_fn=None) -> None:
    """Let every writer fail in a process of its own: `expected` is what the system says."""
    program.write_text(PROGRAM.format(writers={name: textwrap.dedent(source) for name, source in WRITERS.items()}))
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=300, preexec_fn=preexec_fn)
    assert done.returncode == 0, done.stderr
    lines = [[part.strip() for part in line.split("|")] for line in done.stdout.splitlines()]
    assert [line[0] for line in lines] == list(WRITERS)
    for name, kind, said, left in lines:
        assert kind == "OSError"
        assert expected in said
        if name != "rows":  # checkpoint.save, which calls it, names the checkpoint and removes what is left
            assert str(folder) in said
            assert left in ("", "metrics.jsonl")


@pytest.mark.parametrize(("mount", "expected"), [("size=128k", "No space left"), ("size=1m,ro", "Read-only file system")])
def test_what_cannot_be_written_is_an_error_and_leaves_nothing_half(tmp_path, mount, expected):
    if not can_mount():
        pytest.skip("this system lets no test mount a tmpfs of its own")
    folder, program = tmp_path / "disk", tmp_path / "program.py"
    folder.mkdir()
    shell = f'mount -t tmpfs -o {mount} tmpfs "{folder}" && exec "{sys.executable}" "{program}" "{folder}"'
    check(["unshare", "-rm", "sh", "-c", shell], program, folder, expected)


def test_what_grows_beyond_a_limit_is_an_error_and_leaves_nothing_half(tmp_path):
    folder, program = tmp_path / "disk", tmp_path / "program.py"
    folder.mkdir()
    limit = functools.partial(resource.setrlimit, resource.RLIMIT_FSIZE, (128 * 1024, 128 * 1024))
    check([sys.executable, program, folder], program, folder, "File too large", preexec_fn=limit)


def test_a_full_disk_leaves_whole_lines_in_the_metrics(tmp_path):
    folder = tmp_path / "disk"
    folder.mkdir()
    from verl_dots.runlog import MetricsLog, read_metrics

    log = MetricsLog(folder / "metrics.jsonl")
    log.append(1, {"x": 1.0})
    with log.path.open("a") as stream:
        stream.write('{"step": 2, "x')  # what a full disk leaves of a line
    log.cut(after_step=2)
    log.append(2, {"x": 2.0})
    assert [line["step"] for line in read_metrics(log.path)] == [1, 2]
