"""What vLLM's CPU worker needs to take new weights while it runs. Used by tests/vllm_cpu.sh alone."""

from __future__ import annotations

from verl.workers.rollout.vllm_rollout.utils import vLLMColocateWorkerExtension
from vllm.model_executor.layers import utils


class KeepWeights(vLLMColocateWorkerExtension):
    """verl's extension of a vLLM worker, for a CPU.

    After loading, vLLM's CPU build packs a linear layer for oneDNN and drops `layer.weight`. verl loads the trainer's
    weights into exactly that parameter after every step and lets vLLM pack anew: so it has to stay.
    """

    def __new__(cls, **kwargs):
        pack = utils.dispatch_cpu_unquantized_gemm
        utils.dispatch_cpu_unquantized_gemm = lambda layer, remove_weight: pack(layer, remove_weight=False)
        return super().__new__(cls, **kwargs)
