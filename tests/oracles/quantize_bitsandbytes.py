"""Quantizes small random matrices with bitsandbytes and writes what it made of them.

    python3 tests/oracles/quantize_bitsandbytes.py tests/data/goldens/bitsandbytes_4bit.safetensors

tests/quant/bitsandbytes_test.cpp holds our codec against the file. Tensors are named CASE.part; the cases are
INPUT.TYPE.BLOCKSIZE.plain|double. The metadata has the versions, each case's offset as JSON number text, and its quant_state
text as bitsandbytes packs it.

Inputs are wide enough that every row holds whole blocks, but for `partial`: the AVX-512 kernel of 0.50.2 is wrong otherwise.
The partial one is dequantized by plain arithmetic in torch.
"""

import json
import pathlib
import sys

import bitsandbytes
import bitsandbytes.functional as F
import torch
from safetensors.torch import save_file

BLOCK_SIZES = (64, 256)


def make_inputs():
    generator = torch.Generator().manual_seed(20261121)

    def normal(*shape):
        return torch.randn(*shape, generator=generator) * 0.02

    heavy = normal(8, 256) * torch.exp(2 * torch.randn(8, 1, generator=generator))
    return {
        "f32": normal(8, 256),
        "bf16": normal(8, 256).to(torch.bfloat16),
        "f16": heavy.to(torch.float16),
        "partial": normal(7, 100),
    }


def dequantize_plainly(packed, state):
    """value[code] * absmax, without the CPU kernel."""
    absmax = state.absmax
    if state.nested:
        absmax = F.dequantize_blockwise(state.absmax, state.state2) + state.offset
    codes = torch.stack([packed.flatten() >> 4, packed.flatten() & 15], dim=1).flatten().long()
    count = state.shape.numel()
    scales = absmax.repeat_interleave(state.blocksize)[:count]
    return (state.code[codes[:count]] * scales).reshape(state.shape)


def main(target):
    tensors, metadata = {}, {"torch": torch.__version__, "bitsandbytes": bitsandbytes.__version__}
    for name, weight in make_inputs().items():
        tensors[f"{name}.weight"] = weight
        for kind in ("nf4", "fp4"):
            for block_size in BLOCK_SIZES:
                for double in (False, True):
                    case = f"{name}.{kind}.{block_size}.{'double' if double else 'plain'}"
                    packed, state = F.quantize_4bit(
                        weight, blocksize=block_size, quant_type=kind, compress_statistics=double
                    )
                    values = dequantize_plainly(packed, state)
                    if name != "partial":
                        kernel = F.dequantize_4bit(packed, state).float()
                        assert torch.equal(kernel, values.to(weight.dtype).float()), case
                    tensors[f"{case}.packed"] = packed
                    tensors[f"{case}.absmax"] = state.absmax
                    tensors[f"{kind}.quant_map"] = state.code
                    if double:
                        tensors[f"{case}.nested_absmax"] = state.state2.absmax
                        tensors["nested_quant_map"] = state.state2.code
                        metadata[f"{case}.offset"] = json.dumps(state.offset.item())
                    if block_size == 64:
                        tensors[f"{case}.dequantized"] = values.contiguous()
                    text = state.as_dict(packed=True)[f"quant_state.bitsandbytes__{kind}"]
                    metadata[f"{case}.state"] = bytes(text.tolist()).decode()
    save_file({name: value.clone() for name, value in tensors.items()}, target, metadata=metadata)
    print(f"{target}: {pathlib.Path(target).stat().st_size} bytes, {len(tensors)} tensors")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(sys.argv[1])
