"""Small random models with towers of vision or sound, as Transformers saves them and as some were published: nibble's logits of text
against Transformers', with a PEFT adapter and its gradients, merged, in 4 bits, and PEFT's with an adapter that nibble trained.

    NIBBLE=build/release/bin/nibble python vision_tower.py [gemma3 qwen2_5_vl mistral3+mistral4 ...]

Fails where logits differ by more than 1e-4 of their size, or the adapters move none.
"""
import json
import sys
import tempfile
from pathlib import Path

import numpy
import torch
import transformers
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForImageTextToText, CONFIG_MAPPING

from compare_written import nibble, transformers_logits
from families import loss_of
from model_types import YARN

TEXT = dict(vocab_size=97, hidden_size=32, intermediate_size=56, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2, head_dim=8,
            max_position_embeddings=64)
NO_HEAD_DIM = {k: v for k, v in TEXT.items() if k != "head_dim"}
GEMMA3 = TEXT | dict(sliding_window=8, query_pre_attn_scalar=8, layer_types=["sliding_attention", "sliding_attention", "full_attention"],
                     rope_parameters=dict(full_attention=dict(rope_type="linear", factor=8.0, rope_theta=1e6),
                                          sliding_attention=dict(rope_type="default", rope_theta=1e4)))
EXPERTS = dict(moe_intermediate_size=12, num_experts_per_tok=2)
MISTRAL4 = NO_HEAD_DIM | EXPERTS | dict(model_type="mistral4", num_key_value_heads=4, n_routed_experts=4, kv_lora_rank=16, q_lora_rank=20,
                                        qk_rope_head_dim=8, qk_nope_head_dim=12, v_head_dim=10, first_k_dense_replace=1, pad_token_id=None,
                                        rope_parameters=YARN | dict(rope_theta=1e4))
CODES = 64  # of pictures


def mrope(theta, sections=(2, 1, 1), **more):
    return dict(rope_parameters=dict(rope_type="default", rope_theta=theta, mrope_section=list(sections), **more))


def configs():
    pixtral = dict(model_type="pixtral", hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=2, head_dim=8,
                   image_size=28, patch_size=14)
    siglip = dict(hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=2, image_size=28, patch_size=14)
    qwen = dict(depth=1, hidden_size=16, intermediate_size=24, num_heads=2, out_hidden_size=32)
    ids = dict(image_token_id=93, video_token_id=94)
    started = ids | dict(vision_start_token_id=91, vision_end_token_id=92)
    yield "gemma3", dict(text_config=GEMMA3, vision_config=siglip, mm_tokens_per_image=1, image_token_index=95, boi_token_index=93,
                         eoi_token_index=94)
    deep = qwen | dict(num_position_embeddings=16, deepstack_visual_indexes=[0])
    yield "qwen3_vl", dict(text_config=TEXT | mrope(5e6, mrope_interleaved=True), vision_config=deep, **started)
    yield "qwen3_vl_moe", dict(text_config=TEXT | EXPERTS | mrope(5e6, mrope_interleaved=True) | dict(num_experts=4), **started,
                               vision_config=deep)
    yield "qwen2_vl", dict(text_config=NO_HEAD_DIM | mrope(1e6), **started,
                           vision_config=dict(depth=1, embed_dim=16, hidden_size=32, mlp_ratio=2, num_heads=2), tie_word_embeddings=True)
    yield "qwen2_5_vl", dict(text_config=NO_HEAD_DIM | mrope(1e6), vision_config=qwen | dict(fullatt_block_indexes=[0]), **started)
    glm = dict(depth=1, hidden_size=16, intermediate_size=24, num_heads=2, out_hidden_size=32, image_size=28)
    marks = started | dict(image_start_token_id=91, image_end_token_id=92, video_start_token_id=91, video_end_token_id=92)
    half = mrope(1e4, (1, 1, 0), partial_rotary_factor=0.5)
    yield "glm4v", dict(text_config=NO_HEAD_DIM | half, vision_config=glm, **marks)
    yield "glm4v_moe", dict(text_config=TEXT | EXPERTS | half | dict(n_routed_experts=4), vision_config=glm, **marks)
    yield "glm46v", dict(text_config=NO_HEAD_DIM | half | dict(model_type="glm4v_text"), **marks,
                         vision_config=glm | dict(model_type="glm4v_vision"))
    for text in ("qwen2", "qwen3"):
        yield "internvl+" + text, dict(text_config=TEXT | dict(model_type=text), image_token_id=93, vision_config=siglip)
    mixed = dict(layer_types=["conv", "full_attention", "conv"], pad_token_id=None)
    yield "lfm2_vl", dict(text_config=NO_HEAD_DIM | mixed | dict(model_type="lfm2"), image_token_id=93, projector_hidden_size=16,
                          vision_config=siglip | dict(model_type="siglip2_vision_model", num_patches=4))
    yield "lfm3_vl", dict(text_config=TEXT | mixed | dict(model_type="lfm3"), projector_hidden_size=16, **started,
                          vision_config=siglip | dict(num_key_value_heads=1, layer_types=["full_attention"]))
    compass = {kind: dict(rope_type="default", rope_theta=theta, mrope_section=[2, 1, 1]) for kind, theta in
               (("sliding_attention", 1e4), ("full_attention", 5e4))}
    yield "cohere_compass", dict(text_config=NO_HEAD_DIM | dict(sliding_window=8, pad_token_id=None, rope_parameters=compass, logit_scale=0.5,
                                 layer_types=["sliding_attention", "sliding_attention", "full_attention"]), vision_config=deep, **started)
    yield "lighton_ocr", dict(text_config=TEXT | dict(model_type="qwen3"), vision_config=pixtral, image_token_id=93)
    delta = dict(model_type="qwen3_5_text", layer_types=["linear_attention", "linear_attention", "full_attention"], linear_num_key_heads=2,
                 linear_num_value_heads=4, linear_key_head_dim=8, linear_value_head_dim=8, rms_norm_eps=1e-2)
    for kind in ("minicpmv4_6", "minicpmv4_7"):
        yield kind, dict(text_config=TEXT | delta, vision_config=siglip | dict(num_hidden_layers=2), insert_layer_id=0, image_token_id=93)
    exaone4 = TEXT | dict(model_type="exaone4", sliding_window=8, sliding_window_pattern=2)
    yield "exaone4_5", dict(text_config=exaone4, vision_config=qwen | dict(num_key_value_heads=1, fullatt_block_indexes=[0]), **ids)
    yield "mistral3", dict(text_config=TEXT | dict(model_type="mistral"), vision_config=pixtral, image_token_index=95)
    yield "mistral3+mistral4", dict(text_config=MISTRAL4, vision_config=pixtral, image_token_index=95, tie_word_embeddings=False)
    audio = AutoConfig.for_model("wavtokenizer_encoder")
    text = NO_HEAD_DIM | dict(vocab_size=100 + CODES + audio.codebook_size, output_vocab_size=97)
    pictures = dict(codebook_size=CODES, embed_dim=8, latent_channels=8, base_channels=32, channel_multiplier=[1, 1], num_res_blocks=1,
                    attn_resolutions=[], resolution=16)
    yield "apertus1p5", dict(text_config=text, vision_config=pictures, audio_config=audio.to_dict(), image_token_id=98, audio_token_id=99,
                             image_token_offset=100, audio_token_offset=100 + CODES)


def publish(kind, model):
    """The directory in the words of files that were published before Transformers 5; whether there are such."""
    path, weights = model / "config.json", model / "model.safetensors"
    config, tensors = json.loads(path.read_text()), load_file(weights)
    if kind in ("qwen2_vl", "qwen2_5_vl"):
        text = config.pop("text_config")
        rope = text.pop("rope_parameters")
        text["rope_theta"] = rope["rope_theta"]
        text["rope_scaling"] = dict(type="mrope", mrope_section=rope["mrope_section"])
        config = text | config
        tensors = {name.replace("model.language_model.", "model.").replace("model.visual.", "visual."): t for name, t in tensors.items()}
    elif kind == "qwen3_vl_moe":
        tensors = {name: t.transpose(1, 2).contiguous() if ".mlp.experts." in name else t for name, t in tensors.items()}
    else:
        return False
    path.write_text(json.dumps(config))
    save_file(tensors, weights, metadata=dict(format="pt"))
    return True


def load(directory):
    return AutoModelForImageTextToText.from_pretrained(directory, dtype=torch.float32)


def logits_of(model, ids):
    with torch.no_grad():
        return model.eval()(input_ids=torch.from_numpy(ids)).logits.float().numpy()


def check(kind, folder, scratch):
    """The rows of one directory: what, nibble's logits, theirs."""
    ids = numpy.random.default_rng(0).integers(3, 90, (2, 20))
    numpy.save(scratch / "ids.npy", ids)
    whole = lambda directory: transformers_logits(directory, ids, AutoModelForImageTextToText)

    def logits(directory, *flags):
        nibble("logits", "--model", directory, *flags, "--ids", scratch / "ids.npy", "--compute-dtype", "f32", "--out", scratch / "l.npy")
        return numpy.load(scratch / "l.npy")

    yield "model", logits(folder), whole(folder)
    targets = r".*language_model.*(q_proj|q_b_proj|down_proj)"
    adapted = get_peft_model(load(folder), LoraConfig(r=4, target_modules=targets, task_type="CAUSAL_LM", init_lora_weights=False))
    adapted.save_pretrained(scratch / "adapter")
    with_adapter = logits_of(adapted, ids)
    adapted.eval()
    loss_of(adapted, torch.from_numpy(ids), torch.from_numpy(ids))[0].backward()
    want = {n.replace(".default", ""): p.grad.numpy() for n, p in adapted.named_parameters() if p.grad is not None}
    yield "adapter", logits(folder, "--adapter", scratch / "adapter"), with_adapter
    nibble("gradients", "--model", folder, "--adapter", scratch / "adapter", "--ids", scratch / "ids.npy", "--labels", scratch / "ids.npy",
           "--compute-dtype", "f32", "--out", scratch / "g.safetensors")
    got = {name: t.numpy() for name, t in load_file(scratch / "g.safetensors").items()}
    assert got.keys() == want.keys(), sorted(got.keys() ^ want.keys())[:2]
    of_norm = lambda all: numpy.concatenate([all[n].ravel() / numpy.linalg.norm(want[n]) for n in sorted(want)])
    yield "gradients", of_norm(got), of_norm(want)
    nibble("merge", "--model", folder, "--adapter", scratch / "adapter", "--out", scratch / "merged", "--dtype", "f32")
    yield "merged", whole(scratch / "merged"), with_adapter
    experts = "moe" in kind or "mistral4" in kind
    towers = [".*vision_tower", ".*multi_modal_projector"] if kind.startswith("mistral3") else [".*visual"]
    skip = ["--skip", "lm_head", ".*experts", *towers] if experts else []
    nibble("quantize", "--model", folder, "--out", scratch / "packed", *skip)
    yield "4 bits", logits(scratch / "packed"), whole(scratch / "packed")
    (scratch / "d.jsonl").write_text("".join(json.dumps(dict(input_ids=row.tolist())) + "\n" for row in ids))
    parameters = dict(target_parameters=["mlp.experts.gate_up_proj", "mlp.experts.down_proj", "mlp.gate.weight"]) if experts else {}
    (scratch / "r.json").write_text(json.dumps(dict(
        model=dict(path=str(folder), compute_dtype="f32"), data=dict(train=str(scratch / "d.jsonl"), format="tokens"),
        adapter=dict(r=3, lora_alpha=9, init_lora_weights=False, **parameters,
                     target_modules=["out_proj", "w2"] if kind.startswith("lfm") else ["o_proj", "down_proj"]),
        optimizer=dict(lr=1e-2), train=dict(steps=2), output=dict(dir=str(scratch / "run")))))
    nibble("train", scratch / "r.json")
    trained = scratch / "run/adapter"
    theirs = logits_of(PeftModel.from_pretrained(load(folder), trained), ids)
    assert abs(theirs - whole(folder)).max() > 1e-2, "the trained adapter moves nothing"
    yield "trained here", logits(folder, "--adapter", trained), theirs
    nibble("merge", "--model", folder, "--adapter", trained, "--out", scratch / "merged_here", "--dtype", "f32")
    yield "and merged", whole(scratch / "merged_here"), theirs


def main(kind, options):
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        model = AutoModelForImageTextToText.from_config(CONFIG_MAPPING[kind.partition("+")[0]](**options))
        for parameter in model.parameters():
            parameter.data.normal_(0, 0.2)
        directory = Path(folder) / "model"
        model.save_pretrained(directory)
        good = True
        for form in ("", ", as published"):
            if form and not publish(kind, directory):
                continue
            with tempfile.TemporaryDirectory() as scratch:
                for what, got, want in check(kind, directory, Path(scratch)):
                    difference, size = float(abs(got - want).max()), max(1.0, float(numpy.sqrt((want**2).mean())))
                    good &= difference <= 1e-4 * size
                    print(f"{kind}{form}, {what}: {difference:.1e} of {size:.1f}", flush=True)
    return good


if __name__ == "__main__":
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    wanted = [(kind, options) for kind, options in configs() if len(sys.argv) == 1 or kind in sys.argv[1:]]
    sys.exit(0 if all([main(kind, options) for kind, options in wanted]) else "logits differ")
