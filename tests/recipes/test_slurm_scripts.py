"""Parts of the Slurm job that need no Slurm; tests/slurm.sh runs all of it under the real one."""

import importlib.util
import os
import signal
import socket
import subprocess
import time

import pytest

from tests.recipes.scripts import HOME, ROOT

SUPERVISED = """
source recipes/slurm/environment.sh
supervise "$@"
"""


def bash(script, *arguments, **variables):
    environment = {"PATH": os.environ["PATH"], "HOME": HOME, "RAY_ADDRESS": "head:1", "VENV": "", **variables}
    command = ["bash", "-c", script, "bash", *arguments]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, cwd=ROOT, env=environment, stdout=pipe, stderr=pipe, text=True)


def output(script, *arguments, **variables):
    process = bash(script, *arguments, **variables)
    out, err = process.communicate(timeout=60)
    return process.returncode, out.strip(), err.strip()


def functions(call, **variables):
    return output(f"source recipes/slurm/functions.sh; {call}", **variables)


def wait_until(condition, seconds=20):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "did not happen"
        time.sleep(0.05)


def alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    with open(f"/proc/{pid}/stat") as stream:
        return stream.read().split()[2] != "Z"


@pytest.mark.parametrize("code", [0, 3])
def test_a_supervised_command_keeps_its_exit_code(code):
    assert output(SUPERVISED, "bash", "-c", f"echo ran; exit {code}")[:2] == (code, "ran")


@pytest.mark.parametrize(("ask", "code"), [(signal.SIGUSR2, 0), (signal.SIGTERM, 143)])
def test_the_whole_group_ends_when_asked(tmp_path, ask, code):
    """SIGUSR2 is our own order to stop, so the step counts as done; SIGTERM comes from Slurm."""
    pid = tmp_path / "pid"
    process = bash(SUPERVISED, "bash", "-c", f"sleep 1000 & echo $! > {pid}; wait")
    wait_until(lambda: pid.exists() and pid.read_text().strip())
    grandchild = int(pid.read_text())
    process.send_signal(ask)
    process.communicate(timeout=30)
    assert process.returncode == code
    wait_until(lambda: not alive(grandchild))


def test_the_command_itself_does_not_hear_the_order_to_stop(tmp_path):
    """Slurm gives a signal to every process of a step; Ray's would die of it in any order."""
    pid = tmp_path / "pid"
    process = bash(SUPERVISED, "bash", "-c", f"echo $$ > {pid}; exec sleep 1000")
    wait_until(lambda: pid.exists() and pid.read_text().strip())
    os.kill(int(pid.read_text()), signal.SIGUSR2)
    time.sleep(0.3)
    assert process.poll() is None
    process.send_signal(signal.SIGUSR2)
    process.communicate(timeout=30)


def test_what_setup_and_venv_do(tmp_path):
    (tmp_path / "setup").write_text("export SEEN=yes RAY_ADDRESS=other\n")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "activate").write_text("export ACTIVE=yes\n")
    show = ("bash", "-c", "echo $SEEN $ACTIVE $RAY_ADDRESS")
    setup = {"SETUP": str(tmp_path / "setup"), "VENV": str(tmp_path)}
    assert output(SUPERVISED, *show, **setup)[1] == "yes yes head:1"
    assert output(SUPERVISED, *show, SETUP=setup["SETUP"])[1] == "yes head:1"


def stand_in(folder, name):
    """A program that prints its arguments, one a line."""
    path = folder / name
    path.write_text("#!/bin/sh\nprintf '%s\\n' \"$@\"\n")
    path.chmod(0o755)
    return {"PATH": f"{folder}:{os.environ['PATH']}"}


def test_apptainers_command_line(tmp_path):
    variables = stand_in(tmp_path, "apptainer") | {"CONTAINER": "verl.sif", "CONTAINER_ARGS": "--bind /scratch"}
    words = output(SUPERVISED, "ray", "start", **variables)[1].split("\n")
    expected = ["exec", "--nv", "--bind", str(ROOT), "--pwd", str(ROOT), "--bind", "/scratch", "verl.sif", "ray", "start"]
    assert words == expected


def test_enroots_command_line(tmp_path):
    """It hands on no variables by itself; the host's PATH would hide the image's programs."""
    variables = stand_in(tmp_path, "enroot") | {"CONTAINER": "verl.sqsh", "METHOD": "rr"}
    words = output(SUPERVISED, "ray", "start", **variables)[1].split("\n")
    assert words[:3] == ["start", "--mount", f"{ROOT}:{ROOT}"]
    assert words[-3:] == ["verl.sqsh", "ray", "start"]
    handed_on = {words[i + 1] for i, word in enumerate(words) if word == "--env"}
    assert {"METHOD", "RAY_ADDRESS"} <= handed_on
    assert not {"PATH", "HOME"} & handed_on


def test_an_unknown_container_is_one_line_and_exit_code_2():
    code, _, err = output(SUPERVISED, "ray", CONTAINER="verl.tar")
    assert (code, err) == (2, "verl_dots.sbatch: error: CONTAINER=verl.tar is neither apptainer's .sif nor enroot's .sqsh")


def test_ports_of_jobs_do_not_overlap_and_lie_below_linuxs_own():
    starts = [int(port) for port in functions("for id in {1..2600}; do first_port $id; done")[1].split()]
    assert len(set(starts)) == 2600
    assert all(port % 8 == 0 and 10_000 < port and port + 8 <= 32_768 for port in starts)


def test_checkpointed_step(tmp_path):
    assert functions("checkpointed_step", OUT=str(tmp_path))[1] == "0"
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "latest_checkpointed_iteration.txt").write_text("40")
    assert functions("checkpointed_step", OUT=str(tmp_path))[1] == "40"


def test_the_address_of_a_node_is_not_loopback_where_there_is_another():
    own = subprocess.run(["hostname", "-I"], capture_output=True, text=True, check=True).stdout.split()
    found = functions("address_of localhost")[1]
    assert found in own or (not own and found == "127.0.0.1")


def test_outside_slurm_the_job_script_says_how_to_start_it():
    code, _, err = output("bash recipes/slurm/verl_dots.sbatch")
    assert code != 0 and err.endswith("this is a job script: sbatch recipes/slurm/verl_dots.sbatch RECIPE")
    code, _, err = output("bash recipes/slurm/verl_dots.sbatch", SLURM_SUBMIT_DIR="/tmp")
    assert (code, err) == (2, "verl_dots.sbatch: error: /tmp is not the repository's root: submit from there")


def test_a_head_that_listens_before_a_node_has_joined_is_waited_for(monkeypatch, capsys):
    """Ray's client gives up on it after a minute, which a busy machine takes."""
    pytest.importorskip("ray")
    spec = importlib.util.spec_from_file_location("wait_for_nodes", ROOT / "recipes" / "slurm" / "wait_for_nodes.py")
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)

    def give_up(**_):
        raise ConnectionError("Failed to connect to Ray cluster")

    monkeypatch.setattr(script.ray, "init", give_up)
    with socket.create_server(("127.0.0.1", 0)) as head:
        address = f"127.0.0.1:{head.getsockname()[1]}"
        monkeypatch.setenv("RAY_ADDRESS", address)
        assert script.nodes_up(address) == 0
        assert script.main(2, seconds=0.0) == 1
    assert capsys.readouterr().err == f"wait_for_nodes.py: error: 0 of 2 nodes at {address} after 0 s\n"
