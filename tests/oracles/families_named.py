"""Cases of families.py whose options are those of a published model, not drawn: the forms that people meet most.

    python families_named.py tests/data/goldens/families [--only BEGINNING]
"""
import argparse, shutil
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

import families, family_configs

SIZES = dict(vocab_size=37, hidden_size=16, intermediate_size=21, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
             max_position_embeddings=64, bos_token_id=1, eos_token_id=2, pad_token_id=0)


def of(**options):
    return {**SIZES, **options}


# Ids from 33 on are outside the table of the layers' inputs, where its row 0 stands for them.
GEMMA_3N = dict(vocab_size=37, hidden_size=16, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=1, head_dim=8, sliding_window=6,
                max_position_embeddings=64, tie_word_embeddings=True, layer_types=["sliding_attention", "full_attention"] * 2,
                hidden_size_per_layer_input=6, vocab_size_per_layer_input=33, num_kv_shared_layers=2, laurel_rank=5, altup_num_inputs=2,
                intermediate_size=[21, 21, 42, 42], activation_sparsity_pattern=[0.9, 0.5, 0.0, 0.0], bos_token_id=1, eos_token_id=2, pad_token_id=0)

# name: (model_type, options, written as published files are); those of padding_idx have id 7, 0 and 36 in the text
CASES = {
    "llama2-in-shards": ("llama", of(num_key_value_heads=4, tie_word_embeddings=False), True),
    "llama3-scaling": ("llama", of(tie_word_embeddings=True, rope_parameters=dict(
        rope_type="llama3", rope_theta=500.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=16)), True),
    "mistral-window": ("mistral", of(sliding_window=5, tie_word_embeddings=False), True),
    "qwen2-tied": ("qwen2", of(tie_word_embeddings=True, use_sliding_window=False, sliding_window=4, max_window_layers=1), True),
    "qwen3-wide-heads": ("qwen3", of(head_dim=8, tie_word_embeddings=True), False),
    "gemma1": ("gemma", of(num_key_value_heads=1, head_dim=8, tie_word_embeddings=True, hidden_act="gelu_pytorch_tanh"), True),
    "gemma2-caps": ("gemma2", of(head_dim=8, sliding_window=4, query_pre_attn_scalar=6, attn_logit_softcapping=20.0,
                                 final_logit_softcapping=10.0, tie_word_embeddings=True), True),
    "phi3-partial-rope": ("phi3", of(sliding_window=5, rope_parameters=dict(rope_type="default", rope_theta=10000.0,
                                                                            partial_rotary_factor=0.5)), False),
    "gptneox-parallel": ("gpt_neox", dict(
        vocab_size=37, hidden_size=32, intermediate_size=27, num_hidden_layers=2, num_attention_heads=4, max_position_embeddings=64,
        hidden_act="gelu_fast", use_parallel_residual=True, tie_word_embeddings=False, bos_token_id=1, eos_token_id=2,
        rope_parameters=dict(rope_type="default", rope_theta=10000.0, partial_rotary_factor=0.25)), True),
    "falcon-7b-form": ("falcon", dict(
        vocab_size=37, hidden_size=16, num_hidden_layers=2, num_attention_heads=4, multi_query=True, parallel_attn=True,
        new_decoder_architecture=False, bias=False, alibi=False, tie_word_embeddings=True, bos_token_id=1, eos_token_id=2,
        hidden_dropout=0.0, attention_dropout=0.0), True),
    "gpt2-small-form": ("gpt2", dict(
        vocab_size=37, n_embd=16, n_layer=2, n_head=4, n_positions=64, activation_function="gelu_new", resid_pdrop=0.0, embd_pdrop=0.0,
        attn_pdrop=0.0, bos_token_id=1, eos_token_id=2), True),
    "opt-125m-form": ("opt", dict(
        vocab_size=37, hidden_size=16, ffn_dim=21, num_hidden_layers=2, num_attention_heads=4, max_position_embeddings=64,
        word_embed_proj_dim=16, do_layer_norm_before=True, activation_function="relu", dropout=0.0, tie_word_embeddings=True,
        pad_token_id=1, bos_token_id=2, eos_token_id=2), True),
    "padding-untied": ("llama", of(tie_word_embeddings=False, pad_token_id=7), True),
    "padding-tied": ("llama", of(tie_word_embeddings=True, pad_token_id=7), True),
    "padding-from-the-end": ("llama", of(tie_word_embeddings=False, pad_token_id=-1), True),
    "padding-unused": ("gpt_neox", dict(
        vocab_size=37, hidden_size=16, intermediate_size=27, num_hidden_layers=2, num_attention_heads=4, max_position_embeddings=64,
        tie_word_embeddings=False, bos_token_id=1, eos_token_id=2, pad_token_id=7), True),
    "padding-gemma3n": ("gemma3n_text", GEMMA_3N, False),
    "padding-gemma3n-other": ("gemma3n_text", {**GEMMA_3N, "pad_token_id": 7}, False),
}


def cut(folder):
    """The same weights in several files and an index."""
    (folder / "sharded").mkdir()
    AutoModelForCausalLM.from_pretrained(folder, dtype="auto").save_pretrained(folder / "sharded", max_shard_size="6KB")
    (folder / "model.safetensors").unlink()
    for file in (folder / "sharded").glob("*.safetensors*"):
        file.rename(folder / file.name)
    shutil.rmtree(folder / "sharded")


plain_texts = families.make_texts


def padded_texts(config, r, length):
    ids, labels = plain_texts(config, r, length)
    ids[:, 5], ids[:, 8], ids[1, 10] = 7, 36, 0
    return ids, torch.where(labels < 0, labels, ids)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--only", default="", help="names that begin so")
    args = parser.parse_args()
    out = args.out
    for name, (kind, options, published) in CASES.items():
        if not name.startswith(args.only):
            continue
        family_configs.FAMILIES[name] = lambda r, kind=kind, options=options: (kind, dict(options))
        families.make_texts = padded_texts if name.startswith("padding") else plain_texts
        families.make_clear_case(out / name, name, name, int(published), small=True)
        if name.endswith("-in-shards"):
            cut(out / name / "model")
        print("made", name, flush=True)


if __name__ == "__main__":
    main()
