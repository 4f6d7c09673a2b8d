"""Blocks of weights, their NF4 codes and scales, and both again after double quantization: tests/data/nf4-golden.

    python nf4_golden.py DATA

Codes and scales of the first step are bitsandbytes' (CPU). The second step, codes of the scales, is written down here in NumPy: the
CPU library looks its codes up in a table of 65536 entries, which now and then is not the nearest one. Cases: normal64x256 (256 blocks,
one nested block), uneven96x320 (480: one and a part), both from f32 and bf16; edges8x64 (a block of zeros, tiny values, the table's
own values, values between two of them, zeros of either sign). Files NAME.WHAT.npy; bits of bf16 numbers are stored as uint16.
"""
import os, shutil, sys
from pathlib import Path

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
import bitsandbytes.functional as F
import numpy as np
import torch

torch.set_num_threads(1)
NF4 = F.get_4bit_type("nf4", device="cpu").numpy()
DYNAMIC = F.create_dynamic_map().numpy()


def edges():
    rows = np.zeros((8, 64), np.float32)
    rows[1] = np.float32(1e-30) * np.arange(-32, 32, dtype=np.float32)
    rows[2] = np.tile(NF4, 4)
    middles = (NF4[1:] + NF4[:-1]) / np.float32(2)
    rows[3, :15], rows[3, 63] = np.nextafter(middles, np.float32(-2)), 1
    rows[4, :15], rows[4, 63] = np.nextafter(middles, np.float32(2)), -1
    rows[5, ::2], rows[5, 1::2] = -0.0, 0.0
    rows[5, 7] = 3
    rows[6] = np.where(np.arange(64) % 2, 65504, -65504)
    rows[7] = np.linspace(-1, 1, 64, dtype=np.float32) ** 3
    return rows


def bits(array):
    return torch.from_numpy(array).bfloat16().view(torch.uint16).numpy()


def write_case(out, name, weight, bf16):
    save = lambda what, array: np.save(out / f"{name}.{what}.npy", array)
    tensor = torch.from_numpy(weight)
    if bf16:
        tensor = tensor.bfloat16()
        save("weight_bf16bits", tensor.view(torch.uint16).numpy())
    else:
        save("weight_f32", weight)
    packed, state = F.quantize_4bit(tensor, blocksize=64, quant_type="nf4", compress_statistics=False)
    packed, absmax = packed.numpy(), state.absmax.numpy()
    save("packed_u8", packed)
    save("absmax_f32", absmax)
    codes = np.stack([packed.ravel() >> 4, packed.ravel() & 15], 1).ravel()
    expand = lambda scales: (NF4[codes].reshape(-1, 64) * scales[:, None]).reshape(weight.shape)
    save("dequant_plain_f32", expand(absmax))
    save("dequant_plain_bf16bits", bits(expand(absmax)))
    offset = np.float32(absmax.mean(dtype=np.float64))
    centred = absmax - offset
    blocks = [centred[i:i + 256] for i in range(0, len(centred), 256)]
    nested = np.array([np.abs(block).max() for block in blocks], np.float32)
    nearest = lambda x: np.abs(DYNAMIC.astype(np.float64)[None] - x.astype(np.float64)[:, None]).argmin(1).astype(np.uint8)
    scale_codes = np.concatenate([nearest(block / np.where(top > 0, top, 1)) for block, top in zip(blocks, nested)])
    restored = np.concatenate([DYNAMIC[scale_codes[256 * i:256 * i + 256]] * top for i, top in enumerate(nested)]) + offset
    save("absmax_code_u8", scale_codes)
    save("nested_absmax_f32", nested)
    save("nested_offset_f32", offset)
    save("absmax_dequant_f32", restored)
    save("dequant_dq_f32", expand(restored))


if __name__ == "__main__":
    out = Path(sys.argv[1]) / "nf4-golden"
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir()
    np.save(out / "dynamic_map_256.npy", DYNAMIC)
    r = np.random.default_rng(20261123)
    normal, uneven = (r.standard_normal(shape).astype(np.float32) * np.float32(0.02) for shape in ((64, 256), (96, 320)))
    for name, weight in [("normal64x256", normal), ("uneven96x320", uneven)]:
        for bf16 in (False, True):
            write_case(out, f"{name}_{'bf16' if bf16 else 'fp32'}", weight, bf16)
    write_case(out, "edges8x64_fp32", edges(), False)
