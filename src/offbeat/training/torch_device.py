"""Torch devices by their settings, and the name of the processor that computes."""

import platform
import re
from pathlib import Path

import torch

from offbeat.core.errors import InvalidInput


def torch_device_of(name: str, setting: str = "execution.device") -> str:
    """The torch device that a setting names; InvalidInput if this machine does not have it."""
    if not re.fullmatch(r"auto|cpu|mps|cuda(:\d+)?", name):
        raise InvalidInput(f"{setting} = {name!r}: must be auto, cpu, mps, cuda or cuda:1, cuda:2 ...")
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if name.startswith("cuda"):
        found = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if int(name.partition(":")[2] or 0) >= found:
            raise InvalidInput(f'{setting} = {name!r}: torch finds {found} CUDA devices (use "auto" or "cpu")')
    if name == "mps" and not torch.backends.mps.is_available():
        raise InvalidInput(f'{setting} = "mps": torch finds no MPS device (use "auto" or "cpu")')
    return name


def processor_kind(torch_device: str = "cpu") -> str:
    """What the last bits of results depend on: processor, instruction set and torch version."""
    if torch_device.startswith("cuda"):
        name = torch.cuda.get_device_name(torch_device)
    else:
        name = f"{_processor_name()} ({platform.machine()}, {torch.backends.cpu.get_cpu_capability()})"
    return f"{name}, torch {torch.__version__}"


def _processor_name() -> str:
    information = Path("/proc/cpuinfo")
    lines = information.read_text(encoding="utf-8").splitlines() if information.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or "unknown processor"
