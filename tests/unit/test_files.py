"""verl_dots.files: outputs are whole or absent, inputs are read or named, mistakes end in one line."""

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
from safetensors import SafetensorError

from verl_dots import files

ROOT = Path(__file__).resolve().parents[2]


def listing(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


class TestAtomicPath:
    def test_the_file_appears_only_after_the_block(self, tmp_path):
        target = tmp_path / "deep" / "out.parquet"
        with files.atomic_path(target) as temporary:
            temporary.write_bytes(b"whole")
            assert not target.exists()
            assert temporary.parent == target.parent
            assert temporary.suffix == ".parquet"
        assert target.read_bytes() == b"whole"
        assert listing(target.parent) == ["out.parquet"]

    @pytest.mark.parametrize("failure", [RuntimeError, KeyboardInterrupt, OSError])
    def test_a_failure_leaves_the_old_file_and_nothing_else(self, tmp_path, failure):
        target = tmp_path / "out.jsonl"
        target.write_text("old")
        with pytest.raises(failure), files.atomic_path(target) as temporary:
            temporary.write_text("half")
            raise failure
        assert target.read_text() == "old"
        assert listing(tmp_path) == ["out.jsonl"]

    def test_a_failure_before_the_first_byte_is_the_callers_not_ours(self, tmp_path):
        with pytest.raises(RuntimeError), files.atomic_path(tmp_path / "x"):
            raise RuntimeError
        assert listing(tmp_path) == []

    def test_a_block_that_writes_nothing_is_a_bug(self, tmp_path):
        with pytest.raises(AssertionError), files.atomic_path(tmp_path / "x"):
            pass

    @pytest.mark.parametrize("umask", [0o022, 0o007, 0o077])
    def test_others_may_read_it_as_the_umask_says_whatever_the_writer_did(self, tmp_path, umask):
        """In a process of its own: the umask belongs to a process. safetensors writes for the owner alone."""
        program = """if True:
            import os, sys
            from pathlib import Path
            import numpy as np
            from safetensors.numpy import save_file
            from verl_dots.files import atomic_path

            folder = Path(sys.argv[1])
            os.umask(int(sys.argv[2]))
            writers = {
                "text": lambda path: path.write_text("x"),
                "numbers.npy": lambda path: np.save(path, np.zeros(2)),
                "x.safetensors": lambda path: save_file({"x": np.zeros(2)}, path),
            }
            for name, write in writers.items():
                with atomic_path(folder / name) as temporary:
                    print(oct(temporary.stat().st_mode & 0o777))
                    write(temporary)
                    print(oct(temporary.stat().st_mode & 0o777))
                print(oct((folder / name).stat().st_mode & 0o777))
        """
        command = [sys.executable, "-c", program, str(tmp_path), str(umask)]
        done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True)
        assert done.stdout.split() == [oct(0o600), oct(0o600), oct(0o666 & ~umask)] * 3

    def test_a_folder_that_cannot_be_written_is_named_with_the_output(self):
        with pytest.raises(OSError) as caught, files.atomic_path("/sys/out.parquet"):
            pass
        assert caught.value.filename == "/sys/out.parquet"

    def test_an_error_of_safetensors_is_one_of_the_system(self, tmp_path):
        with pytest.raises(OSError, match=r"x\.safetensors' cannot be written \(.*disk"):
            with files.atomic_path(tmp_path / "x.safetensors"):
                raise SafetensorError("the disk broke")
        assert listing(tmp_path) == []

    def test_a_directory_is_refused(self, tmp_path):
        with pytest.raises(ValueError, match="is a directory"), files.atomic_path(tmp_path):
            pass

    def test_a_full_disk_is_named_by_the_output(self):
        """The system's own error for a write names no file (test_full_disk.py has real disks)."""
        with pytest.raises(OSError) as caught, files.naming("out.parquet"), open("/dev/full", "w") as stream:
            stream.write("x" * 100_000)
        assert files.explain(caught.value).startswith("the disk is full: 'out.parquet'")


class TestReadParquet:
    def test_it_reads(self, tmp_path):
        pd.DataFrame({"a": [1], "b": ["x"]}).to_parquet(tmp_path / "x.parquet")
        assert files.read_parquet(tmp_path / "x.parquet", ["a"])["b"].tolist() == ["x"]

    def test_a_missing_column_is_named_with_those_that_exist(self, tmp_path):
        pd.DataFrame({"a": [1], "b": ["x"]}).to_parquet(tmp_path / "x.parquet")
        with pytest.raises(ValueError, match="no column 'c': it has a, b"):
            files.read_parquet(tmp_path / "x.parquet", ["a", "c"])

    @pytest.mark.parametrize(
        ("content", "words"),
        [(b"", "is empty"), (b"PAR1 rubbish PAR1", "not a readable parquet"), (b"hello", "not a readable parquet")],
    )
    def test_a_broken_file_is_named(self, tmp_path, content, words):
        (tmp_path / "x.parquet").write_bytes(content)
        with pytest.raises(ValueError, match=words) as caught:
            files.read_parquet(tmp_path / "x.parquet")
        assert "x.parquet" in str(caught.value)
        assert "\n" not in str(caught.value)

    def test_no_rows(self, tmp_path):
        pd.DataFrame({"a": []}).to_parquet(tmp_path / "x.parquet")
        with pytest.raises(ValueError, match="no rows"):
            files.read_parquet(tmp_path / "x.parquet")

    def test_no_file(self, tmp_path):
        with pytest.raises(FileNotFoundError):
            files.read_parquet(tmp_path / "x.parquet")


def run_with(capsys, main, argv=()):
    with pytest.raises(SystemExit) as caught:
        files.run_cli(main, list(argv))
    return caught.value.code, capsys.readouterr().err


class TestRunCli:
    @pytest.mark.parametrize(
        ("error", "words"),
        [
            (ValueError("--levels 9:\n   must lie in 1 to 5"), "--levels 9: must lie in 1 to 5"),
            (FileNotFoundError(errno.ENOENT, "No such file", "a.parquet"), "no such file: 'a.parquet'"),
            (PermissionError(errno.EACCES, "Permission denied", "/out"), "no permission: '/out'"),
            (OSError(errno.ENOSPC, "No space left on device", "x"), "the disk is full: 'x'"),
            (OSError(errno.ENOSPC, "No space left on device"), "the disk is full"),
            (ConnectionError("no route"), "no route"),
        ],
    )
    def test_a_mistake_is_one_line_and_exit_code_2(self, capsys, error, words):
        def main(argv):
            raise error

        code, stderr = run_with(capsys, main)
        assert code == 2
        assert words in stderr
        assert stderr.count("\n") == 1

    @pytest.mark.parametrize("bug", [AssertionError, KeyError, TypeError, RuntimeError])
    def test_a_bug_keeps_its_traceback(self, bug):
        def main(argv):
            raise bug("bug")

        with pytest.raises(bug):
            files.run_cli(main, [])

    def test_the_traceback_of_a_mistake_can_be_asked_for(self, monkeypatch):
        def main(argv):
            raise ValueError("x")

        monkeypatch.setenv(files.TRACEBACK_VARIABLE, "1")
        with pytest.raises(ValueError, match="x"):
            files.run_cli(main, [])

    @pytest.mark.parametrize(("returned", "code"), [(None, 0), (0, 0), (3, 3)])
    def test_the_exit_code_is_what_main_returns(self, capsys, returned, code):
        assert run_with(capsys, lambda argv: returned) == (code, "")

    def test_an_unknown_option_is_one_line(self, capsys):
        def main(argv):
            files.Parser(prog="tool").parse_args(argv)

        code, stderr = run_with(capsys, main, ["--nonsense"])
        assert code == 2
        assert "--nonsense" in stderr
        assert stderr.count("\n") == 1

    def test_ctrl_c(self, capsys):
        def main(argv):
            raise KeyboardInterrupt

        assert run_with(capsys, main)[0] == 130


def test_it_imports_nothing_heavy():
    """Neither does verl_dots.manifests, which imports it."""
    code = "import sys, verl_dots.manifests; print([m for m in ('torch', 'pandas', 'numpy', 'verl') if m in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert json.loads(result.stdout.replace("'", '"')) == []
    assert os.environ.get("DOTS_TRACEBACK") is None
