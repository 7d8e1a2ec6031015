"""Ray nodes on the loopback interface, started as one starts a cluster: `ray start`, one process tree a node."""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
import time
from pathlib import Path

from tests.integration.processes import descendants
from tests.integration.runs import ROOT, variables

TRIES = 4
"""Ray gives a node 30 s to start, which a busy machine may not manage."""
TOKEN = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(24)}
"""Environment of every process that joins the cluster, the run itself included."""
JOIN = [  # what `ray.init` may not be told when it joins a cluster
    "~ray_kwargs.ray_init.num_cpus",
    "~ray_kwargs.ray_init.resources",
    "~ray_kwargs.ray_init.object_store_memory",
    "~ray_kwargs.ray_init._temp_dir",
]
"""Overrides of the quickstart for a run that joins a running cluster; its address is to be set besides."""


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def start_node(out: Path, port: int, *options: str, cpus: int, npus: int) -> subprocess.Popen:
    """Start a node in the environment of the run in `out`, and wait until it has joined.

    Args:
        port: of the cluster's head on 127.0.0.1.
        options: of `ray start`; `--head` among them makes this node the head.
    """
    where = [f"--port={port}"] if "--head" in options else [f"--address=127.0.0.1:{port}"]
    # 0: ports that are free, since the nodes share a machine
    ports = ["--min-worker-port=0", "--max-worker-port=0", "--dashboard-agent-listen-port=0"]
    size = [f"--num-cpus={cpus}", f'--resources={{"NPU":{npus}}}', "--object-store-memory=300000000"]
    command = ["ray", "start", "--block", "--node-ip-address=127.0.0.1", *where, *ports, *size, *options]
    environment = {**variables(out), **TOKEN, "VERL_FILE_LOGGER_PATH": str(out / "verl_metrics.jsonl")}
    for _ in range(TRIES):
        log = out / f"node-{len(list(out.glob('node-*.log')))}.log"
        with log.open("wb") as stream:
            process = subprocess.Popen(
                ["bash", "-c", 'source recipes/common/cpu_env.sh && exec "$@"', "bash", *command],
                cwd=ROOT,
                env={**os.environ, **environment},
                stdout=stream,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        while process.poll() is None:
            if "Ray runtime started" in log.read_text():
                return process
            time.sleep(0.1)
    raise AssertionError(log.read_text()[-2000:])


def actors(node: subprocess.Popen) -> list[str]:
    """Names of the Ray actors and workers that run on a node."""
    return sorted(name.split()[0] for name in descendants(node.pid).values() if name.startswith("ray::"))
