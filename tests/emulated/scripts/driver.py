"""Asks the driver what scripts ask before they train: by nvidia-smi, and by NVML as pynvml calls it."""

import ctypes
import subprocess

import torch


def smi(*options: str) -> str:
    return subprocess.run(["nvidia-smi", *options], check=True, capture_output=True, text=True).stdout.strip()


kept = torch.ones(100 * 2**20, dtype=torch.uint8, device="cuda")
query = "name,memory.total,memory.used,driver_version,compute_cap"
print(smi(f"--query-gpu={query}", "--format=csv,noheader,nounits"))
print(smi("--query-gpu", "index,memory.total", "--format=csv", "-i", "0"))
print(smi("-L"))
assert "CUDA Version: " in smi()
uuid = smi("--query-gpu=uuid", "--format=csv,noheader")
assert smi("-L", "-i", uuid) == smi("-L", "-i", "0") == smi("-L")
nowhere = subprocess.run(["nvidia-smi", "-L", "-i", "9"], check=False, capture_output=True, text=True)
assert (nowhere.returncode, nowhere.stdout) == (6, "No devices were found\n")
refused = subprocess.run(["nvidia-smi", "topo", "-m"], check=False, capture_output=True, text=True)
print(refused.returncode, refused.stderr.strip())

nvml = ctypes.CDLL("libnvidia-ml.so.1")
assert nvml.nvmlInit_v2() == 0
device, memory, text = ctypes.c_void_p(), (ctypes.c_ulonglong * 3)(), ctypes.create_string_buffer(96)
assert nvml.nvmlDeviceGetHandleByIndex_v2(1, ctypes.byref(device)) == 2  # an invalid argument
assert nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(device)) == 0
assert nvml.nvmlDeviceGetName(device, text, 4) == 7  # too small
assert nvml.nvmlDeviceGetMemoryInfo(device, memory) == 0
assert list(memory) == [torch.cuda.mem_get_info()[1], *reversed([memory[0] - memory[1], torch.cuda.mem_get_info()[0]])]
assert nvml.nvmlDeviceGetUtilizationRates(device, memory) == 3  # not supported
assert not hasattr(nvml, "nvmlDeviceGetFanSpeed")  # what is not emulated is not found
