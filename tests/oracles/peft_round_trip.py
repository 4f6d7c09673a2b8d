"""Directories between nibble and PEFT, both ways, on a tiny random Llama.

    python3 tests/oracles/peft_round_trip.py make DIRECTORY
writes what tests/data/goldens/peft_llama holds: base/ (Transformers), adapter/ (PEFT), and logits.safetensors with
input_ids [2, 9], base and adapter [2, 9, V] float32: what the two compute.

    python3 tests/oracles/peft_round_trip.py load BASE ADAPTER MERGED IDS.npy OUT.npy
loads ADAPTER on BASE in PEFT, and MERGED in Transformers, and writes both logits, float32 [2, batch, T, V]. Fails when
one of them misses or does not know a tensor.
"""

import pathlib
import sys

import numpy
import peft
import torch
import transformers
from safetensors.torch import save_file


def logits_of(model, ids):
    with torch.no_grad():
        return model.eval()(ids).logits.float()


def make(directory):
    directory = pathlib.Path(directory)
    torch.manual_seed(1)
    config = transformers.LlamaConfig(
        vocab_size=61, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64, tie_word_embeddings=False, initializer_range=0.3)
    base = transformers.LlamaForCausalLM(config)
    base.save_pretrained(directory / "base")
    ids = torch.randint(0, 61, (2, 9))
    results = {"input_ids": ids, "base": logits_of(base, ids)}
    lora = peft.LoraConfig(r=4, lora_alpha=6, target_modules=["q_proj", "v_proj", "down_proj"], task_type="CAUSAL_LM")
    model = peft.get_peft_model(base, lora)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.2)
    results["adapter"] = logits_of(model, ids)
    model.save_pretrained(directory / "adapter")
    versions = {"torch": torch.__version__, "transformers": transformers.__version__, "peft": peft.__version__}
    save_file(results, directory / "logits.safetensors", metadata=versions)
    for unneeded in ("base/generation_config.json", "adapter/README.md"):
        (directory / unneeded).unlink(missing_ok=True)


def load_whole(directory):
    model, info = transformers.AutoModelForCausalLM.from_pretrained(
        directory, dtype=torch.float32, output_loading_info=True)
    problems = {key: value for key, value in info.items() if value and key != "error_msgs"}
    assert not problems, problems
    return model


def load(base, adapter, merged, ids, out):
    torch.set_num_threads(1)
    ids = torch.from_numpy(numpy.load(ids))
    model = peft.PeftModel.from_pretrained(load_whole(base), adapter)
    both = torch.stack([logits_of(model, ids), logits_of(load_whole(merged), ids)])
    numpy.save(out, both.numpy())


if __name__ == "__main__":
    {"make": make, "load": load}[sys.argv[1]](*sys.argv[2:])
