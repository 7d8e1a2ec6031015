"""Full and read-only disks: an error that names the file, nothing half-written, and what was there before still whole.

A child process mounts a small tmpfs of its own (user namespaces, or root); skipped where the system forbids that.
"""

from __future__ import annotations

import functools
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


@pytest.mark.parametrize("mount", ["size=128k", "size=1m,ro"])
def test_what_cannot_be_written_is_an_error_and_leaves_nothing_half(tmp_path, mount):
    if not can_mount():
        pytest.skip("this system lets no test mount a tmpfs of its own")
    folder, program = tmp_path / "disk", tmp_path / "program.py"
    folder.mkdir()
    program.write_text(PROGRAM.format(writers={name: textwrap.dedent(source) for name, source in WRITERS.items()}))
    shell = f'mount -t tmpfs -o {mount} tmpfs "{folder}" && exec "{sys.executable}" "{program}" "{folder}"'
    done = subprocess.run(["unshare", "-rm", "sh", "-c", shell], capture_output=True, text=True, cwd=ROOT, timeout=300)
    assert done.returncode == 0, done.stderr
    lines = [[part.strip() for part in line.split("|")] for line in done.stdout.splitlines()]
    assert [line[0] for line in lines] == list(WRITERS)
    for name, kind, said, left in lines:
        assert kind == "OSError"
        assert ("Read-only file system" if mount.endswith("ro") else "No space left") in said
        if name != "rows":  # checkpoint.save, which calls it, names the checkpoint and removes what is left
            assert str(folder) in said
            assert left in ("", "metrics.jsonl")


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
