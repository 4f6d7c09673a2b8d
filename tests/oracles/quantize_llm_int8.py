"""A tiny model in LLM.int8 as Transformers saves it, and the logits of its dequantized weights.

    python quantize_llm_int8.py tests/data/goldens/llm_int8

Writes the 8-bit directory, input_ids.npy and logits.npy (float32; every Linear with the weights that bitsandbytes'
int8_vectorwise_dequant gives, so that the rounding of activations is no part of it).
"""
import sys
from pathlib import Path

import bitsandbytes.functional as bnb
import numpy, torch
from transformers import AutoConfig, AutoModelForCausalLM, BitsAndBytesConfig


def main(out):
    torch.manual_seed(0)
    source = out / "source"
    config = AutoConfig.for_model("llama", vocab_size=40, hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=2,
                                  num_key_value_heads=1, max_position_embeddings=64, initializer_range=0.2)
    AutoModelForCausalLM.from_config(config).half().save_pretrained(source)
    quantized = AutoModelForCausalLM.from_pretrained(source, quantization_config=BitsAndBytesConfig(load_in_8bit=True), device_map="cpu")
    quantized.save_pretrained(out)
    (out / "generation_config.json").unlink(missing_ok=True)
    dense = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32).eval()
    state = quantized.state_dict()
    with torch.no_grad():
        for name, parameter in dense.named_parameters():
            scales = state.get(name.removesuffix("weight") + "SCB")
            if scales is not None:
                parameter.copy_(bnb.int8_vectorwise_dequant(state[name], scales))
        ids = torch.randint(0, 40, (1, 9))
        numpy.save(out / "input_ids.npy", ids.numpy())
        numpy.save(out / "logits.npy", dense(ids).logits.numpy())
    for file in source.iterdir():
        file.unlink()
    source.rmdir()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
