"""Copy bandwidth of a Vulkan device: ``python -m bench.vulkan.copy [DEVICE]``, a JSON object on stdout."""

from __future__ import annotations

import json
import sys

from bench.ceilings import best_time
from convtrain.gpu.live import vk
from convtrain.gpu.live.commands import Barriers, recording
from convtrain.gpu.live.device import Device
from convtrain.gpu.live.instance import choose_device, shared_instance
from convtrain.gpu.live.memory import device_block
from convtrain.gpu.live.submission import Queue, submit_info

COPIES = 8  # in one submit: its fixed cost disappears


def main() -> None:
    snapshot = choose_device(sys.argv[1] if len(sys.argv) > 1 else None)
    largest = max(heap.size for heap in snapshot.heaps if heap.device_local)
    size = min(1 << 30, largest // 8, snapshot.limits.buffer_size) // 4 * 4
    device = Device(shared_instance(), snapshot, frozenset())
    try:
        source, target = device_block(device, size), device_block(device, size)
        structs, barriers, commands = vk.Structs(), Barriers(), device.command_buffer()
        region = structs.new("VkBufferCopy", size=size)
        with recording(commands, vk.VK_COMMAND_BUFFER_USAGE_SIMULTANEOUS_USE_BIT):
            vk.lib.vkCmdFillBuffer(commands, source, 0, size, 1)
            for _ in range(COPIES):
                barriers.copy(commands)
                vk.lib.vkCmdCopyBuffer(commands, source, target, 1, region)
        queue, info = Queue(device), submit_info(structs, [commands])
        seconds = best_time(lambda: queue.wait(queue.submit([info])), 3)
    finally:
        device.close()
    print(
        json.dumps(
            {
                "copy_bytes_per_second": (2 * COPIES + 1) * size / seconds,
                "matrix_flops_per_second": None,
                "how": f"Vulkan: {COPIES} copies of {size >> 20} MiB on {snapshot.name}",
            }
        )
    )


if __name__ == "__main__":
    main()
