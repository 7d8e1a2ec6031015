"""verl's FSDP2 engine on a CPU, for language models. Importing this module registers it.

A critic is not offered: verl 0.9.1 hard-codes flash attention in the value model, and GRPO needs none.
"""

from verl.workers.engine.base import EngineRegistry
from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead


@EngineRegistry.register(model_type="language_model", backend=["fsdp2"], device=["cpu"])
class CPUEngineWithLMHead(FSDPEngineWithLMHead):
    """`FSDPEngineWithLMHead` without pinned memory, which needs an accelerator."""

    def _build_fsdp_module(self, module):
        # verl/workers/engine/fsdp/transformer_impl.py:459 gives the reference policy (forward_only) an offload policy
        # with pin_memory=True. There is nothing to offload from, so the flag is hidden while the module is wrapped.
        config, forward_only = self.engine_config, self.engine_config.forward_only
        object.__setattr__(config, "forward_only", False)
        try:
            return super()._build_fsdp_module(module)
        finally:
            object.__setattr__(config, "forward_only", forward_only)
