"""Small random models with towers of vision or sound, as Transformers saves them: nibble's logits of text against Transformers', with a
PEFT adapter, merged and in 4 bits.

    NIBBLE=build/release/bin/nibble python vision_tower.py [gemma3 qwen3_vl apertus1p5]
"""
import sys
import tempfile
from pathlib import Path

import numpy
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoConfig, AutoModelForImageTextToText, CONFIG_MAPPING

from compare_written import nibble, transformers_logits

TEXT = dict(vocab_size=97, hidden_size=32, intermediate_size=56, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2, head_dim=8,
            max_position_embeddings=64)
GEMMA3 = TEXT | dict(sliding_window=8, query_pre_attn_scalar=8, layer_types=["sliding_attention", "sliding_attention", "full_attention"],
                     rope_parameters=dict(full_attention=dict(rope_type="linear", factor=8.0, rope_theta=1e6),
                                          sliding_attention=dict(rope_type="default", rope_theta=1e4)))
QWEN3_VL = TEXT | dict(rope_parameters=dict(rope_type="default", rope_theta=5e6, mrope_section=[2, 1, 1], mrope_interleaved=True))
CODES = 64  # of pictures


def configs():
    vision = dict(hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=2, image_size=28, patch_size=14)
    yield "gemma3", dict(text_config=GEMMA3, vision_config=vision, mm_tokens_per_image=1, image_token_index=95, boi_token_index=93,
                         eoi_token_index=94)
    vision = dict(depth=1, hidden_size=16, intermediate_size=24, num_heads=2, out_hidden_size=32, num_position_embeddings=16,
                  deepstack_visual_indexes=[0])
    yield "qwen3_vl", dict(text_config=QWEN3_VL, vision_config=vision, image_token_id=93, video_token_id=94, vision_start_token_id=91,
                           vision_end_token_id=92)
    audio = AutoConfig.for_model("wavtokenizer_encoder")
    text = {k: v for k, v in TEXT.items() if k != "head_dim"} | dict(vocab_size=100 + CODES + audio.codebook_size, output_vocab_size=97)
    vision = dict(codebook_size=CODES, embed_dim=8, latent_channels=8, base_channels=32, channel_multiplier=[1, 1], num_res_blocks=1,
                  attn_resolutions=[], resolution=16)
    yield "apertus1p5", dict(text_config=text, vision_config=vision, audio_config=audio.to_dict(), image_token_id=98, audio_token_id=99,
                             image_token_offset=100, audio_token_offset=100 + CODES)


def logits_of(directory, ids):
    return transformers_logits(directory, ids, AutoModelForImageTextToText)


def main(kind, options, folder):
    torch.manual_seed(0)
    model = AutoModelForImageTextToText.from_config(CONFIG_MAPPING[kind](**options))
    for parameter in model.parameters():
        parameter.data.normal_(0, 0.2)
    model.save_pretrained(folder / "model")
    adapted = get_peft_model(AutoModelForImageTextToText.from_pretrained(folder / "model", dtype=torch.float32),
                             LoraConfig(r=4, target_modules=r".*language_model.*(q_proj|down_proj)", task_type="CAUSAL_LM", init_lora_weights=False)).eval()
    adapted.save_pretrained(folder / "adapter")
    ids = numpy.random.default_rng(0).integers(3, 90, (2, 20))
    numpy.save(folder / "ids.npy", ids)
    with torch.no_grad():
        with_adapter = adapted(input_ids=torch.from_numpy(ids)).logits.numpy()

    def logits(directory, *flags):
        nibble("logits", "--model", directory, *flags, "--ids", folder / "ids.npy", "--compute-dtype", "f32", "--out", folder / "l.npy")
        return numpy.load(folder / "l.npy")

    nibble("merge", "--model", folder / "model", "--adapter", folder / "adapter", "--out", folder / "merged", "--dtype", "f32")
    nibble("quantize", "--model", folder / "model", "--out", folder / "packed")
    for what, got, want in (("model", logits(folder / "model"), logits_of(folder / "model", ids)),
                            ("adapter", logits(folder / "model", "--adapter", folder / "adapter"), with_adapter),
                            ("merged", logits_of(folder / "merged", ids), with_adapter),
                            ("4 bits", logits(folder / "packed"), logits_of(folder / "packed", ids))):
        print(f"{kind}, {what}: {abs(got - want).max():.1e}", flush=True)


if __name__ == "__main__":
    for kind, options in configs():
        if len(sys.argv) > 1 and kind not in sys.argv[1:]:
            continue
        with tempfile.TemporaryDirectory() as scratch:
            main(kind, options, Path(scratch))
