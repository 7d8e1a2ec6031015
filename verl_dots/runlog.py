"""What a run leaves on disk beside verl's own logs: one flat JSON line per step, and a lock on its output folder.

verl's file logger nests the metrics and starts its file anew on resume; ours keeps `{"step": 3, "dots/pearson": ...}` lines
for the whole run, whatever was killed in between.
"""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from verl_dots.files import atomic_path, naming

logger = logging.getLogger(__name__)

NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOTSUP)
"""What a file system without locks answers (Lustre mounted without `flock`, NFS without its lock service)."""


class MetricsLog:
    """`metrics.jsonl` with one flat object per step (key `step`)."""

    def __init__(self, path: str | os.PathLike) -> None:
        self.path = Path(path)
        self._last_step: int | None = None  # of the last line, once this object has written or cut

    def append(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Write one line; values that are not finite numbers or text are written as null.

        What is said of the last line's step again joins that line: a resumed run validates the step it was restored to.
        """
        line = {"step": int(step)} | {name: _plain(value) for name, value in metrics.items()}
        if line["step"] == self._last_step:
            lines = read_metrics(self.path)
            self._rewrite([*lines[:-1], lines[-1] | line])
            return
        self._last_step = line["step"]
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with naming(self.path), self.path.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(line) + "\n")

    def cut(self, after_step: int) -> None:
        """Drop every line of a step later than `after_step`, and a last line that a kill left unfinished."""
        if not self.path.exists():
            return
        kept = [line for line in read_metrics(self.path) if line["step"] <= after_step]
        self._last_step = kept[-1]["step"] if kept else None
        if not kept:  # a run that starts anew in this folder
            os.truncate(self.path, 0)
            return
        self._rewrite(kept)

    def _rewrite(self, lines: list[dict[str, Any]]) -> None:
        with atomic_path(self.path) as temporary:
            temporary.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


def read_metrics(path: str | os.PathLike) -> list[dict[str, Any]]:
    """The lines of a `metrics.jsonl`, in order; an unfinished last line is left out.

    Raises:
        ValueError: any other line is not a JSON object with a whole number under `step`.
    """
    lines = Path(path).read_text(encoding="utf-8", errors="replace").splitlines()
    rows = []
    for number, line in enumerate(lines, start=1):
        try:
            row = json.loads(line)
        except ValueError:
            if number == len(lines):
                break  # the run was killed while it wrote this line
            raise ValueError(f"{path}, line {number}: not JSON: the file was edited or damaged") from None
        if not isinstance(row, dict) or not isinstance(row.get("step"), int):
            raise ValueError(f'{path}, line {number}: no object with a whole number under "step"')
        rows.append(row)
    return rows


def _plain(value: Any) -> Any:
    if isinstance(value, (str, bool, type(None))):
        return value
    if hasattr(value, "item"):
        value = value.item()
    if isinstance(value, (int, float)):
        return value if math.isfinite(value) else None
    return None


class FolderLock:
    """Holds `folder` for this process until it ends, so that two runs never write into one folder.

    Where the file system has no locks, that is a warning and nothing is held.

    Raises:
        ValueError: another process holds it.
    """

    def __init__(self, folder: str | os.PathLike) -> None:
        path = Path(folder) / ".lock"
        path.parent.mkdir(parents=True, exist_ok=True)
        self._stream = path.open("a")
        try:
            fcntl.flock(self._stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._stream.close()
            raise ValueError(
                f"{folder} is in use by another run: give this one its own trainer.default_local_dir"
            ) from None
        except OSError as error:
            if error.errno not in NO_LOCKS:
                self._stream.close()
                raise
            logger.warning(
                "dots: %s is on a file system without locks (%s): see to it that no second run uses this folder",
                folder, error.strerror,
            )  # fmt: skip

    def release(self) -> None:
        """Let another run take the folder; also happens when the process ends, however it ends."""
        self._stream.close()
