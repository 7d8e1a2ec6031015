"""Files that are whole or absent, and command lines that end in one line.

Habits that every script of ``data_prep/`` keeps, beside the manifest of its output (:mod:`verl_dots.manifests`):

* An output appears under its name only when it is complete (:func:`atomic_path`).
* An input is read whole or refused by its name (:func:`read_parquet`).
* A user's mistake ends with one line on stderr and exit code 2; a bug keeps its traceback (:func:`run_cli`).

Nothing here imports torch; pandas is imported only by :func:`read_parquet`.
"""

from __future__ import annotations

import argparse
import errno
import os
import secrets
import stat
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from safetensors import SafetensorError

if TYPE_CHECKING:
    import pandas

TRACEBACK_VARIABLE = "DOTS_TRACEBACK"
"""Environment variable: set to 1, :func:`run_cli` shows the traceback of a user's mistake as well."""


@contextmanager
def atomic_path(path: str | os.PathLike) -> Iterator[Path]:
    """Yield a temporary path in the directory of ``path``; rename it to ``path`` when the block succeeds.

    The temporary name is hidden and ends in the suffix of ``path``, because some writers choose a format by it. The
    data is flushed to the disk before the rename. If the block raises (full disk, Ctrl-C, a bug), the temporary file is
    removed and whatever stood under ``path`` before is untouched. Missing parent directories are created.

    While it is being written only its owner can read it; under its name it has the rights of any new file of that
    directory (umask, default access lists), whatever the writer gave it: safetensors writes for its owner alone.

    Raises:
        ValueError: ``path`` is a directory.
        OSError: the directory cannot be written to.
    """
    target = Path(path)
    if target.is_dir():
        raise ValueError(f"output {str(target)!r} is a directory: give a file name inside it")
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.parent / f".{target.stem}.{secrets.token_hex(4)}{target.suffix}"
    try:
        with naming(target):
            rights = _create_private(temporary, target)
            yield temporary
            assert temporary.stat().st_size, f"nothing was written to the temporary path of {target}"
            _fsync(temporary)
            if stat.S_IMODE(temporary.stat().st_mode) != rights:  # some file systems have no rights to change
                os.chmod(temporary, rights)
            os.replace(temporary, target)
            _fsync(target.parent)
    finally:
        temporary.unlink(missing_ok=True)


def _create_private(temporary: Path, target: Path) -> int:
    """Create an empty file for its owner alone; returns the rights that the system gives a new file there.

    The system is asked by creating one, because reading the umask means setting it, for every thread of the process.
    """
    try:
        rights = _create(temporary, 0o666)
        temporary.unlink()
        _create(temporary, 0o600)
    except OSError as error:
        raise OSError(error.errno, os.strerror(error.errno), os.fspath(target)) from error
    return rights


def _create(path: Path, rights: int) -> int:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, rights)
    try:
        return stat.S_IMODE(os.fstat(descriptor).st_mode)
    finally:
        os.close(descriptor)


@contextmanager
def naming(path: str | os.PathLike) -> Iterator[None]:
    """Give an ``OSError`` that names no file, such as that of a disk that fills up while we write, the name ``path``.

    safetensors has an exception of its own for what goes wrong while it writes; it becomes an ``OSError``.
    """
    try:
        yield
    except SafetensorError as error:
        raise OSError(f"{os.fspath(path)!r} cannot be written ({one_line(error)})") from error
    except OSError as error:
        if error.filename is None and error.errno is not None:
            raise OSError(error.errno, os.strerror(error.errno), os.fspath(path)) from error
        raise


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def check_writable(path: str | os.PathLike) -> None:
    """Make a nameless file where an output will be: rights alone do not tell (read-only disks, root).

    Raises:
        OSError: naming the output: no file can be made in its directory, or in the one above that exists.
    """
    folder = next(parent for parent in Path(path).absolute().parents if parent.exists())
    try:
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise OSError(error.errno, os.strerror(error.errno), os.fspath(path)) from error


def read_parquet(
    path: str | os.PathLike, required: Sequence[str] = (), ignored: Sequence[str] = ()
) -> pandas.DataFrame:
    """Read a parquet file that must have the columns ``required`` and at least one row; ``ignored`` ones are not read.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is empty, not parquet, or lacks a column; the message names the columns it has.
    """
    import pyarrow.parquet

    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
    if path.is_file() and path.stat().st_size == 0:
        raise ValueError(f"{str(path)!r} is empty (0 bytes)")
    try:
        names = pyarrow.parquet.read_schema(path).names if ignored else []
        table = pyarrow.parquet.read_table(path, columns=[name for name in names if name not in ignored] or None)
        table.validate(full=True)  # otherwise text that is no UTF-8 fails when somebody looks at it
        frame = table.to_pandas()
    except (PermissionError, IsADirectoryError):
        raise
    except Exception as error:  # whatever a damaged file makes the libraries say, it is the file
        raise ValueError(f"{str(path)!r} is not a readable parquet file ({one_line(error)}): make it again") from error
    missing = [name for name in required if name not in frame.columns]
    if missing:
        raise ValueError(f"{str(path)!r} has no column {missing[0]!r}: it has {', '.join(map(str, frame.columns))}")
    if frame.empty:
        raise ValueError(f"{str(path)!r} has no rows")
    return frame


class Parser(argparse.ArgumentParser):
    """An ``ArgumentParser`` whose complaints are a ``ValueError``, so that :func:`run_cli` prints them as one line."""

    def error(self, message: str) -> NoReturn:
        raise ValueError(f"{message} (see --help)")


def run_cli(main: Callable[[Sequence[str] | None], int | None], argv: Sequence[str] | None = None) -> NoReturn:
    """Run ``main(argv)`` as a command: ``if __name__ == "__main__": run_cli(main)``.

    ``argv=None`` lets the parser read ``sys.argv``. Exit codes: 0 when ``main`` returns None, otherwise what it
    returns; 2 after one line on stderr for a user's mistake (``ValueError``) or what the system refuses (``OSError``:
    no such file, no permission, full disk, no network); 130 on Ctrl-C. Anything else is a bug and keeps its traceback.
    """
    try:
        raise SystemExit(main(argv) or 0)
    except (ValueError, OSError) as error:
        if os.environ.get(TRACEBACK_VARIABLE) == "1":
            raise
        print(f"{Path(sys.argv[0]).name}: error: {explain(error)}", file=sys.stderr)
        raise SystemExit(2) from None
    except KeyboardInterrupt:
        print(f"{Path(sys.argv[0]).name}: interrupted", file=sys.stderr)
        raise SystemExit(130) from None


def explain(error: BaseException) -> str:
    """One line for a person: what is wrong, with which file, and what to do where we know."""
    if not isinstance(error, OSError) or error.errno is None:
        return one_line(error)
    where = f" {error.filename!r}" if error.filename is not None else ""
    if error.errno == errno.ENOENT:
        return f"no such file:{where}"
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return f"no permission:{where} ({os.strerror(error.errno).lower()}): choose another place or change its rights"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"the disk is full:{where} ({os.strerror(error.errno).lower()}): free some space or choose another place"
    return one_line(error)


def one_line(error: BaseException) -> str:
    """The message of an exception with its whitespace folded, or the name of its type if it has none."""
    return " ".join(str(error).split()) or type(error).__name__
