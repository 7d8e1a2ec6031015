"""A CPU as a verl platform (verl/plugin/platform/platform_base.py, verl 0.9.1). Importing this module registers it."""

import contextlib
import os
import resource
import types

import psutil
import torch
from verl.plugin.platform import PlatformBase, PlatformRegistry


def _nothing(*args, **kwargs) -> None:
    return None


def _device_module() -> types.ModuleType:
    """The stand-in for `torch.cuda`: memory is the resident memory of this process, everything else does nothing."""
    module = types.ModuleType("verl_dots.cpu.device")
    for name in (
        "empty_cache",
        "ipc_collect",
        "manual_seed",
        "manual_seed_all",
        "reset_accumulated_memory_stats",
        "reset_peak_memory_stats",
        "set_device",
        "set_per_process_memory_fraction",
        "synchronize",
    ):
        setattr(module, name, _nothing)

    def resident(device=None) -> int:
        return psutil.Process().memory_info().rss

    def peak_resident(device=None) -> int:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # Linux counts in KiB

    def free_and_total(device=None) -> tuple[int, int]:
        memory = psutil.virtual_memory()
        return memory.available, memory.total

    module.is_available = lambda: True
    module.device_count = lambda: 1
    module.current_device = lambda: "cpu"
    module.get_device_name = lambda device=None: "CPU"
    module.memory_allocated = module.memory_reserved = resident
    module.max_memory_allocated = module.max_memory_reserved = peak_resident
    module.mem_get_info = free_and_total
    module.get_rng_state = torch.get_rng_state
    module.set_rng_state = torch.set_rng_state
    return module


_DEVICE_MODULE = _device_module()


@PlatformRegistry.register(platform="cpu")
class PlatformCPU(PlatformBase):
    device_name = "cpu"
    vendor_name = "cpu"
    device_module = _DEVICE_MODULE

    def is_available(self) -> bool:
        return True

    def is_platform_available(self, use_smi_check: bool = False) -> bool:
        return False  # never by auto-detection, only by VERL_PLATFORM=cpu

    def current_device(self) -> str:
        return "cpu"  # verl passes it on to tensor.to(): an index would mean a GPU

    def device_count(self) -> int:
        return 1

    def set_device(self, device_index: int) -> None:
        pass

    def synchronize(self, device_index: int | None = None) -> None:
        pass

    def manual_seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    def manual_seed_all(self, seed: int) -> None:
        torch.manual_seed(seed)

    def set_allocator_settings(self, settings: str) -> None:
        pass

    def empty_cache(self) -> None:
        pass

    def get_device_capability(self, device_index: int = 0) -> tuple[None, None]:
        return None, None

    def communication_backend_name(self) -> str:
        """`gloo`; in a training worker it also creates the default process group.

        verl/utils/distributed.py (`initialize_global_process_group_ray`) asks torch for the backend
        "cpu:gloo,{device}:{backend}", which torch refuses when the device is "cpu" (listed twice). It skips that when
        a default group exists, and reads this name just before it looks.
        """
        import torch.distributed as dist

        if os.environ.get("WG_BACKEND") == "ray" and "RANK" in os.environ and not dist.is_initialized():
            rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
            dist.init_process_group("cpu:gloo", rank=rank, world_size=world_size, init_method="env://")
        return "gloo"

    def visible_devices_envvar(self) -> str:
        return "CUDA_VISIBLE_DEVICES"

    @contextlib.contextmanager
    def nvtx_range(self, msg: str):
        yield

    def profiler_start(self) -> None:
        pass

    def profiler_stop(self) -> None:
        pass

    def ray_resource_name(self) -> str:
        # verl's ResourcePoolManager counts only GPU and NPU. The recipes declare one that does not exist, and NPU is the
        # one that keeps Ray from handing out a real GPU.
        return "NPU"

    def ray_noset_envvars(self) -> list[str]:
        return []

    def is_ipc_supported(self) -> bool:
        return False

    def cudart(self) -> None:
        return None
