"""Wait until the Ray cluster at RAY_ADDRESS has all its nodes:  python recipes/slurm/wait_for_nodes.py NODES [SECONDS]"""

import os
import socket
import sys
import time

import ray


def answers(address: str) -> bool:
    """Whether the head listens; Ray's client ends its process when it asks too early for too long."""
    host, port = address.rsplit(":", 1)
    try:
        socket.create_connection((host, int(port)), timeout=5).close()
    except OSError:
        return False
    return True


def nodes_up(address: str) -> int:
    """Nodes that are alive; 0 while the head does not answer yet."""
    if not ray.is_initialized():
        if not answers(address):
            return 0
        try:
            ray.init(address=address, log_to_driver=False, logging_level="ERROR")
        except ConnectionError:  # the head listens, and no node has joined yet: on a busy machine that takes minutes
            return 0
    return sum(node["Alive"] for node in ray.nodes())


def main(nodes: int, seconds: float = 600.0) -> int:
    address, deadline = os.environ["RAY_ADDRESS"], time.monotonic() + seconds
    while (up := nodes_up(address)) < nodes:
        if time.monotonic() > deadline:
            print(f"wait_for_nodes.py: error: {up} of {nodes} nodes at {address} after {seconds:.0f} s", file=sys.stderr)
            return 1
        time.sleep(1)
    print(f"Ray has {up} of {nodes} nodes", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), *map(float, sys.argv[2:3])))
