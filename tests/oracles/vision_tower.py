"""A small random Gemma 3 with its vision tower, as Transformers saves it: nibble's logits of text against Transformers', with a PEFT
adapter, merged and in 4 bits.

    NIBBLE=build/release/bin/nibble python vision_tower.py
"""
import tempfile
from pathlib import Path

import numpy
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, Gemma3Config, Gemma3ForConditionalGeneration

from compare_written import nibble, transformers_logits

TEXT = dict(vocab_size=97, hidden_size=32, intermediate_size=56, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2, head_dim=8,
            max_position_embeddings=64, sliding_window=8, query_pre_attn_scalar=8, layer_types=["sliding_attention", "sliding_attention", "full_attention"],
            rope_parameters=dict(full_attention=dict(rope_type="linear", factor=8.0, rope_theta=1e6), sliding_attention=dict(rope_type="default", rope_theta=1e4)))
VISION = dict(hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=2, image_size=28, patch_size=14)


def main(folder):
    torch.manual_seed(0)
    config = Gemma3Config(text_config=TEXT, vision_config=VISION, mm_tokens_per_image=1, image_token_index=95, boi_token_index=93, eoi_token_index=94)
    model = Gemma3ForConditionalGeneration(config)
    for parameter in model.parameters():
        parameter.data.normal_(0, 0.2)
    model.save_pretrained(folder / "model")
    adapted = get_peft_model(AutoModelForCausalLM.from_pretrained(folder / "model"),
                             LoraConfig(r=4, target_modules=r".*language_model.*(q_proj|down_proj)", task_type="CAUSAL_LM", init_lora_weights=False)).eval()
    adapted.save_pretrained(folder / "adapter")
    ids = numpy.random.default_rng(0).integers(3, 90, (2, 20))
    numpy.save(folder / "ids.npy", ids)
    with torch.no_grad():
        with_adapter = adapted(torch.from_numpy(ids)).logits.numpy()

    def logits(directory, *flags):
        nibble("logits", "--model", directory, *flags, "--ids", folder / "ids.npy", "--compute-dtype", "f32", "--out", folder / "l.npy")
        return numpy.load(folder / "l.npy")

    nibble("merge", "--model", folder / "model", "--adapter", folder / "adapter", "--out", folder / "merged", "--dtype", "f32")
    nibble("quantize", "--model", folder / "model", "--out", folder / "packed")
    for what, got, want in (("model", logits(folder / "model"), transformers_logits(folder / "model", ids)),
                            ("adapter", logits(folder / "model", "--adapter", folder / "adapter"), with_adapter),
                            ("merged", transformers_logits(folder / "merged", ids), with_adapter),
                            ("4 bits", logits(folder / "packed"), transformers_logits(folder / "packed", ids))):
        print(f"{what}: {abs(got - want).max():.1e}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        main(Path(scratch))
