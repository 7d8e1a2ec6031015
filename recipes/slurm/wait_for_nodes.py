"""Wait until the Ray cluster at RAY_ADDRESS has all its nodes:  python recipes/slurm/wait_for_nodes.py NODES [SECONDS]"""

import os
import sys
import time

import ray


def nodes_up(address: str) -> int:
    """Nodes that are alive; 0 while the head does not answer yet."""
    try:
        ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    except (ConnectionError, RuntimeError):
        return 0
    try:
        return sum(node["Alive"] for node in ray.nodes())
    finally:
        ray.shutdown()


def main(nodes: int, seconds: float = 300.0) -> int:
    address, deadline = os.environ["RAY_ADDRESS"], time.monotonic() + seconds
    while (up := nodes_up(address)) < nodes:
        if time.monotonic() > deadline:
            print(f"wait_for_nodes.py: error: {up} of {nodes} nodes at {address} after {seconds:.0f} s", file=sys.stderr)
            return 1
        time.sleep(1)
    print(f"Ray has {up} nodes", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), *map(float, sys.argv[2:3])))
