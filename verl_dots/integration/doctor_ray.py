"""A fresh Ray worker as verl would get one: does it have the plugin, and what does the cluster offer.

Ray runs in a child process (`python -m verl_dots.integration.doctor_ray`), so that a Ray that never answers costs no more
than its time limit and leaves nothing behind. The child reads a request from stdin and prints one line of JSON.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

from omegaconf import DictConfig, OmegaConf

from verl_dots.diagnosis.finding import Finding, fail, ok
from verl_dots.diagnosis.resources import Node
from verl_dots.files import one_line
from verl_dots.integration import doctor_versions

_MARK = "verl-dots-doctor:"
_REMEDY = "start a cluster and set RAY_ADDRESS, or mend ray_kwargs.ray_init"


@dataclass(frozen=True)
class Cluster:
    """What Ray answered: its nodes, and what a fresh worker on each of them saw."""

    nodes: list[Node]
    workers: list[dict[str, Any]]


def ray_init_arguments(config: DictConfig) -> dict[str, Any]:
    """The arguments of `ray.init` as verl/trainer/main_ppo.py puts them together."""
    from verl.trainer.constants_ppo import get_ppo_ray_runtime_env

    ray_init = config.ray_kwargs.get("ray_init", {})
    defaults = get_ppo_ray_runtime_env(config)
    defaults.setdefault("env_vars", {})["TRANSFER_QUEUE_ENABLE"] = "1"
    runtime_env = OmegaConf.merge(defaults, ray_init.get("runtime_env", {}))
    return OmegaConf.to_container(OmegaConf.create({**ray_init, "runtime_env": runtime_env}), resolve=True)


def ask_ray(config: DictConfig, accelerator: str, timeout_s: float) -> tuple[list[Finding], Cluster | None]:
    """Start Ray (or join the cluster that RAY_ADDRESS names) and ask a fresh worker on every node.

    Args:
        config: verl's.
        accelerator: Ray's name of it, `GPU` or `NPU`.
        timeout_s: for all of it.
    """
    request = {"ray_init": ray_init_arguments(config), "accelerator": accelerator, "modes": _modes()}
    process = subprocess.Popen(
        [sys.executable, "-m", "verl_dots.integration.doctor_ray"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(json.dumps(request), timeout=timeout_s)
    except subprocess.TimeoutExpired:
        return [
            fail(
                "Ray",
                f"no fresh worker answered within {timeout_s:g} s",
                "look at `ray status`; on a slow disk give more time with --ray-timeout",
            )
        ], None
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    lines = [line for line in output.splitlines() if line.startswith(_MARK)]
    if not lines:
        tail = " / ".join(output.strip().splitlines()[-3:]) or f"exit code {process.returncode}"
        return [fail("Ray", f"it did not start: {tail}", _REMEDY)], None
    return _understand(json.loads(lines[-1][len(_MARK) :]))


def _modes() -> list[str]:
    from verl_dots.integration import check

    return [check.TRAINER_MODE, check.DECOUPLED, check.BEHAVIOUR]


def _understand(answer: dict[str, Any]) -> tuple[list[Finding], Cluster | None]:
    if "error" in answer:
        return [fail("Ray", answer["error"], _REMEDY)], None
    cluster = Cluster([Node(**node) for node in answer["nodes"]], answer["workers"])
    where = f"joined {answer['address']}" if answer["joined"] else "started one here"
    findings = [ok("Ray", f"{where}: {len(cluster.nodes)} node(s), a fresh worker answered on each")]
    for worker in cluster.workers:
        findings += doctor_versions.judge_plugin(
            f"plugin on {worker['node']}", worker["trainer"], worker["losses"], worker["reason"]
        )
    return findings + _compare_versions(cluster), cluster


def _compare_versions(cluster: Cluster) -> list[Finding]:
    """Nodes with other versions than this process."""
    findings = []
    for worker in cluster.workers:
        for package, found in worker["versions"].items():
            here = doctor_versions.version(package)
            if found != here:
                message = f"{worker['node']} has {package} {found}, here it is {here}"
                findings.append(fail("versions", message, f"install the same {package} on all nodes"))
    return findings


# ------------------------------------------------------------------------------------------------ inside the child


def _probe(modes: list[str]) -> dict[str, Any]:
    """What a fresh worker sees. Sent to it by value: the worker may have nothing of ours installed."""
    import importlib
    import platform
    from importlib import metadata

    found: dict[str, Any] = {"node": platform.node(), "trainer": False, "losses": False, "reason": "", "versions": {}}
    for package in ("verl", "verl-dots", "TransferQueue", "torch", "transformers"):
        try:
            found["versions"][package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found["versions"][package] = None
    try:
        importlib.import_module("verl")
        trainers = importlib.import_module("verl.trainer.ppo.v1.trainer_base").TRAINER_REGISTRY
        losses = importlib.import_module("verl.trainer.ppo.core_algos").POLICY_LOSS_REGISTRY
    except Exception as error:  # noqa: BLE001  the worker's environment may be broken in any way; a person must see how
        found["reason"] = f"import verl: {type(error).__name__}: {error}"
        return found
    found["trainer"], found["losses"] = modes[0] in trainers, set(modes[1:]) <= set(losses)
    if not (found["trainer"] and found["losses"]):
        try:
            found["reason"] = importlib.import_module("verl_dots.integration.doctor_versions").reason_absent()
        except Exception as error:  # noqa: BLE001  as above
            found["reason"] = f"{type(error).__name__}: {error}"
    return found


def _answer(request: dict[str, Any]) -> dict[str, Any]:
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    address = request["ray_init"].get("address")
    context = ray.init(**request["ray_init"], log_to_driver=False, logging_level="ERROR")
    alive = [node for node in ray.nodes() if node["Alive"]]
    free = ray._private.state.available_resources_per_node()  # what verl's ResourcePoolManager reads
    probe = ray.remote(num_cpus=0, max_retries=0)(_probe)
    places = [NodeAffinitySchedulingStrategy(node["NodeID"], soft=False) for node in alive]
    calls = [probe.options(scheduling_strategy=place).remote(request["modes"]) for place in places]
    nodes = [
        {
            "name": node["NodeManagerHostname"],
            "cpus": free.get(node["NodeID"], {}).get("CPU", 0.0),
            "accelerators": free.get(node["NodeID"], {}).get(request["accelerator"], 0.0),
            "memory": free.get(node["NodeID"], {}).get("memory"),
        }
        for node in alive
    ]
    joined = address not in (None, "local") or bool(os.environ.get("RAY_ADDRESS"))
    answer = {"nodes": nodes, "workers": ray.get(calls), "joined": joined, "address": context.address_info["address"]}
    ray.shutdown()
    return answer


def _child() -> None:
    request = json.load(sys.stdin)
    try:
        answer = _answer(request)
    except Exception as error:  # noqa: BLE001  Ray raises many things; the parent shows them as one line
        answer = {"error": f"{type(error).__name__}: {one_line(error)}"}
    print(_MARK + json.dumps(answer), flush=True)


if __name__ == "__main__":
    _child()
