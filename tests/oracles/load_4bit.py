"""Loads a 4-bit directory in Transformers and writes its float32 logits.

    python3 tests/oracles/load_4bit.py DIRECTORY IDS.npy LOGITS.npy

IDS.npy: int64 [batch, T]. LOGITS.npy: float32 [batch, T, V]. Fails when Transformers misses or does not know a tensor.
"""

import sys

import numpy
import torch
from bitsandbytes.nn import Linear4bit
from transformers import AutoModelForCausalLM


def main(directory, ids, logits):
    torch.set_num_threads(1)
    model, info = AutoModelForCausalLM.from_pretrained(directory, output_loading_info=True)
    problems = {key: value for key, value in info.items() if value and key != "error_msgs"}
    assert not problems, problems
    four_bit = [module for module in model.modules() if isinstance(module, Linear4bit)]
    assert four_bit, "nothing is in 4 bits"
    for module in four_bit:
        module.support_avx512bf16_for_cpu = False  # else it computes in bf16 whatever it is asked for
        module.compute_dtype = torch.float32
        module.compute_type_is_set = True
    with torch.no_grad():
        out = model.eval()(torch.from_numpy(numpy.load(ids))).logits
    numpy.save(logits, out.float().numpy())
    print(f"{len(four_bit)} modules in 4 bits")


if __name__ == "__main__":
    main(*sys.argv[1:])
