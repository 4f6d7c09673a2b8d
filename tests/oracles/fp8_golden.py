"""Weights in 8-bit floats, as DeepSeek V3 and Qwen3's -FP8 repositories have them, and the values that PyTorch gives them.

    python fp8_golden.py tests/data/goldens/fp8

Writes model.safetensors: NAME.weight f8_e4m3 with NAME.weight_scale_inv, and expected.NAME.weight bf16: code times scale in float32,
rounded once. Blocks are 128 x 128, the last ones smaller; "codes" has all 256 codes and one scale, "experts" two matrices.
"""
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file

BLOCK = 128


def values(codes, scales):
    rows, columns = codes.shape[-2:]
    if scales.numel() > 1:
        scales = scales.float().repeat_interleave(BLOCK, -2)[..., :rows, :].repeat_interleave(BLOCK, -1)[..., :columns]
    return (codes.float() * scales.float()).to(torch.bfloat16)


def main(out):
    generator = torch.Generator().manual_seed(0)
    drawn = lambda *shape: (torch.randn(shape, generator=generator) * 40).to(torch.float8_e4m3fn)
    scale = lambda *shape: torch.rand(shape, generator=generator) * 1e-3 + 1e-4
    cases = {
        "codes.weight": (torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).reshape(16, 16), torch.tensor(0.0123).to(torch.bfloat16)),
        "tall.weight": (drawn(259, 3), scale(3, 1)),
        "wide.weight": (drawn(3, 300), scale(1, 3).to(torch.bfloat16)),
        "experts.down_proj": (drawn(2, 130, 5), scale(2, 2, 1)),
    }
    tensors = {}
    for name, (codes, scales) in cases.items():
        tensors |= {name: codes, name + "_scale_inv": scales, "expected." + name: values(codes, scales)}
    out.mkdir(parents=True, exist_ok=True)
    save_file(tensors, out / "model.safetensors")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
