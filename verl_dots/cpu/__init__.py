"""verl on a CPU: for the quickstart, the tests and the benchmark.

verl 0.9 knows CUDA, ROCm and Ascend. This package adds a CPU through verl's own extension points; trainer, FSDP2,
TransferQueue, Ray and the agent loop stay verl's. It is active only with `VERL_PLATFORM=cpu`; without it none of these
modules is imported.

======================  ==========================================================================================
`platform`              `PlatformCPU` for verl's `PlatformRegistry`
`engine`                the FSDP2 engine for language models on a CPU (no critic: verl hard-codes flash attention there)
`decoding`              batched sampling with a KV cache; one random stream per request. Needs neither verl nor Ray
`server`                the rollout server, a Ray actor around `decoding`
`replica`               what verl's trainer and its FSDP worker see of that server
`seeding`               the seed of a rollout: question, number in its group, policy version, partition, occurrence
`agent_loop`            verl's single-turn agent loop plus a seed per rollout, so that a run repeats exactly
`replay_buffer`         verl's store of current trajectories, polled every 50 ms and read in submission order
`backend`               registers the four above; recipes set `actor_rollout_ref.model.external_lib=verl_dots.cpu.backend`
`watch`                 progress bar and key numbers for a run whose log goes to a file
`arithmetic`            a small task with a verifiable reward and a warm-started model
======================  ==========================================================================================
"""

import os


def activate() -> None:
    """Register the CPU platform with verl. Call it while `import verl` runs, before anything asks for the platform.

    verl loads its plugins at the end of `verl/__init__.py`, when the engine and rollout packages cannot be imported
    yet; those are registered by `verl_dots.cpu.backend`, which verl imports in every process that builds a model
    configuration (`actor_rollout_ref.model.external_lib`).
    """
    assert os.environ.get("VERL_PLATFORM", "").strip().lower() == "cpu", "verl_dots.cpu is for VERL_PLATFORM=cpu only"
    from verl_dots.cpu import platform  # noqa: F401  registers on import
