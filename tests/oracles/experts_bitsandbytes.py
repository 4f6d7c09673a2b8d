"""Puts tensors of experts in 4 bits with bitsandbytes' replace_parameter_4bit and writes the state dicts.

    python3 tests/oracles/experts_bitsandbytes.py tests/data/goldens/bitsandbytes_experts.safetensors
    python3 tests/oracles/experts_bitsandbytes.py check DIRECTORY DENSE

The first makes what tests/quant/bitsandbytes_test.cpp holds our codec against: CASE.weight, the tensor, and the state dict of
it under CASE.TYPE.plain|double. The second reads a directory that `nibble quantize` wrote from the model DENSE with
bitsandbytes, and compares every 4-bit tensor with what replace_parameter_4bit makes of the dense one: codes, and values.
"""

import pathlib
import sys

import bitsandbytes.functional as F
import torch
from bitsandbytes.nn.parametrize import replace_parameter_4bit
from safetensors.torch import load_file, save_file


class Experts(torch.nn.Module):
    def __init__(self, weight):
        super().__init__()
        self.weight = torch.nn.Parameter(weight.clone())


def state_dict(weight, kind, double):
    module = Experts(weight)
    replace_parameter_4bit(module, "weight", compress_statistics=double, quant_type=kind)
    return {name.removeprefix("weight"): value.clone() for name, value in module.state_dict().items()}


def make(target):
    generator = torch.Generator().manual_seed(20261123)
    tensors = {}
    # The second has blocks that begin in one row, and in one expert, and end in the next.
    for case, shape, dtype in (("rows", (3, 20, 64), torch.float32), ("across", (3, 10, 48), torch.bfloat16)):
        weight = (torch.randn(*shape, generator=generator) * 0.02).to(dtype)
        tensors[f"{case}.weight"] = weight
        for kind in ("nf4", "fp4"):
            for double in (False, True):
                for suffix, value in state_dict(weight, kind, double).items():
                    tensors[f"{case}.{kind}.{'double' if double else 'plain'}{suffix}"] = value
    save_file(tensors, target)
    print(f"{target}: {pathlib.Path(target).stat().st_size} bytes, {len(tensors)} tensors")


def read_directory(path):
    tensors = {}
    for file in sorted(pathlib.Path(path).glob("*.safetensors")):
        tensors.update(load_file(file))
    return tensors


def values(tensors, name):
    """The tensor as bitsandbytes reads it, without its kernels (the AVX-512 one is wrong where blocks cross rows)."""
    parts = {key.removeprefix(name + "."): value for key, value in tensors.items() if key.startswith(name + ".")}
    state = F.QuantState.from_dict(parts, device=torch.device("cpu"))
    absmax = state.absmax
    if state.nested:
        absmax = F.dequantize_blockwise(state.absmax, state.state2) + state.offset
    packed = tensors[name]
    codes = torch.stack([packed.flatten() >> 4, packed.flatten() & 15], dim=1).flatten().long()
    scales = absmax.repeat_interleave(state.blocksize)[: state.shape.numel()]
    return (state.code[codes[: state.shape.numel()]] * scales).reshape(state.shape)


def check(directory, dense):
    ours, plain, seen = read_directory(directory), read_directory(dense), 0
    for name in plain:
        state = next((key for key in ours if key.startswith(name + ".quant_state.")), None)
        if state is None:
            continue
        theirs = state_dict(plain[name], state.rsplit("__", 1)[1], f"{name}.nested_absmax" in ours)
        assert torch.equal(ours[name], theirs[""]), f"{name}: codes differ"
        theirs = {name + suffix: value for suffix, value in theirs.items()}
        a, b = values(ours, name), values(theirs, name)
        assert a.shape == plain[name].shape, name
        assert (a - b).abs().max() <= 2e-2 * b.abs().max(), name  # bitsandbytes looks scales up by approximation
        seen += 1
    assert seen, "nothing is in 4 bits"
    print(f"{seen} tensors have bitsandbytes' codes")


if __name__ == "__main__":
    torch.set_num_threads(1)
    check(*sys.argv[2:]) if sys.argv[1] == "check" else make(sys.argv[1])
