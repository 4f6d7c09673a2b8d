"""Runs AdamW8bit of bitsandbytes on random gradients and writes weights and states.

    python3 tests/oracles/adamw8bit.py tests/data/goldens/adamw8bit.safetensors

tests/core/ops/adamw8bit_test.cpp holds our update against the file. The update is that of bitsandbytes' CPU backend, but the
codes are the nearest ones, as its own generic code (and the CUDA kernel) finds them: the CPU kernel of 0.50.2 looks codes up
on a uniform grid of 65,536 points in [-1, 1], which takes small second moments for others (3e-7 for 1.6e-5).
"""

import pathlib
import sys

import bitsandbytes.backends.cpu.ops as cpu
import bitsandbytes.functional as F
import torch
from safetensors.torch import save_file

COUNT, BLOCK, STEPS = 5000, 256, 5


def quantize_nearest(values, code, absmax, out, blocksize):
    padded = torch.nn.functional.pad(values.reshape(-1), (0, -values.numel() % blocksize)).view(-1, blocksize)
    absmax.copy_(padded.abs().max(dim=1)[0])
    scaled = torch.clamp(padded * (1 / absmax[:, None]), -1, 1)
    codes = torch.argmin((scaled.unsqueeze(-1) - code).abs(), dim=-1)
    out.copy_(codes.to(torch.uint8).reshape(-1)[: values.numel()])


def main():
    cpu._quant_blockwise_fp32_direct = quantize_nearest
    generator = torch.Generator().manual_seed(20261121)
    blocks = -(COUNT // -BLOCK)
    w = torch.randn(COUNT, generator=generator) * 0.02
    spread = torch.exp(2 * torch.randn(COUNT, generator=generator))
    m, v = torch.zeros(COUNT, dtype=torch.uint8), torch.zeros(COUNT, dtype=torch.uint8)
    m_absmax, v_absmax = torch.zeros(blocks), torch.zeros(blocks)
    signed, unsigned = F.create_dynamic_map(signed=True), F.create_dynamic_map(signed=False)
    tensors = {"w.0": w.clone(), "unsigned_map": unsigned}
    for step in range(1, STEPS + 1):
        gradient = torch.randn(COUNT, generator=generator) * spread * 1e-3
        cpu._optimizer_update_8bit_blockwise_cpu("adam", gradient, w, m, v, 0.9, 0.95, 0.0, 0.0, 1e-8, step, 1e-3, signed, unsigned,
                                                 m_absmax, v_absmax, 0.1, 0.5)
        tensors |= {f"gradient.{step}": gradient, f"w.{step}": w.clone(), f"m.{step}": m.clone(), f"v.{step}": v.clone(),
                    f"m_absmax.{step}": m_absmax.clone(), f"v_absmax.{step}": v_absmax.clone()}
    save_file(tensors, sys.argv[1])


if __name__ == "__main__":
    pathlib.Path(sys.argv[1]).parent.mkdir(parents=True, exist_ok=True)
    main()
