"""Every family that `nibble export --format gguf` knows, on a small random model: llama.cpp's logits of the export against those
of Transformers and PEFT, and the way back by `nibble import`.

    NIBBLE=build/release/bin/nibble python tests/oracles/gguf_families.py [--families llama,gemma] [--seed S] [--other-head]

llama.cpp takes GELU always in its tanh form, and its CPU from a table of f16: the argument is rounded to f16 and so is the result. So
logits are compared twice, with the model as it is and with its GELU replaced by what llama.cpp computes; the second must agree within
1e-3. That is the table with the wheel's library (what is left there are arguments that a last bit of f32 rounds to the other neighbour in
f16: a few cases may keep more), and just the tanh form with LLAMA_CPP_WITHOUT_TABLE=.../libllama.so, which llama_cpp_without_table.sh
builds and which leaves nothing to excuse. Adapters are compared with GELU replaced.
A row for each case: largest differences of a logit as it is | with GELU replaced | with an adapter beside the export | with it merged,
whether greedy ids are the same, the largest difference in f16, bf16, q8_0, q4_0 (told only), and whether the import has the same
weights, bit for bit (norms stored as 1 + w and decays stored as -exp(w) within 1.3e-7; those of Falcon-H1 have its multipliers in them).
"""
import argparse, json, random, sys, tempfile, warnings
from pathlib import Path

warnings.filterwarnings("ignore")
import numpy as np, peft, torch, transformers
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM

from families import randomize
from gguf_llama_cpp import Model, WITHOUT_TABLE, ffi, lib, nibble, quiet

transformers.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()
torch.set_num_threads(1)
BASE = dict(vocab_size=96, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
            max_position_embeddings=128, bos_token_id=1, eos_token_id=2, pad_token_id=0)
GPT2 = dict(vocab_size=96, n_embd=64, n_layer=2, n_head=4, n_positions=128, bos_token_id=1, eos_token_id=2)
LLAMA3 = dict(rope_type="llama3", rope_theta=5e5, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=64)
# of short texts where the model was first trained on more than the 256 positions that llama.cpp is given here, else of long ones
LONG = dict(rope_type="longrope", rope_theta=1e4, short_factor=[1.0, 1.2, 1.5, 1.9, 2.0, 2.5, 3.0, 3.5], long_factor=[1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0])
LINEAR = dict(rope_type="linear", rope_theta=1e4, factor=2.0)
FALCON = dict(vocab_size=96, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, max_position_embeddings=128, alibi=False, bos_token_id=1, eos_token_id=2)
GEMMA3_ROPE = dict(full_attention=dict(rope_type="linear", rope_theta=1e6, factor=8.0), sliding_attention=dict(rope_type="default", rope_theta=1e4))
SLIDING = lambda period, layers: ["full_attention" if i % period == period - 1 else "sliding_attention" for i in range(layers)]
# name: (model type, its configuration)
CASES = {
    "llama": ("llama", BASE), "llama biases, head apart": ("llama", BASE | dict(attention_bias=True, mlp_bias=True, head_dim=24, tie_word_embeddings=True)),
    "llama llama3 rope": ("llama", BASE | dict(rope_parameters=LLAMA3)), "llama linear rope": ("llama", BASE | dict(rope_parameters=LINEAR)),
    "mistral": ("mistral", BASE | dict(sliding_window=64)), "qwen2": ("qwen2", BASE), "qwen2 tied": ("qwen2", BASE | dict(tie_word_embeddings=True)),
    "qwen3": ("qwen3", BASE | dict(head_dim=24)), "gemma": ("gemma", BASE | dict(head_dim=24)),
    "gemma2": ("gemma2", BASE | dict(head_dim=24, query_pre_attn_scalar=24, sliding_window=8)),
    "gemma3": ("gemma3_text", BASE | dict(head_dim=24, query_pre_attn_scalar=24, sliding_window=8, num_hidden_layers=7, layer_types=SLIDING(6, 7), rope_parameters=GEMMA3_ROPE)),
    "gemma3 period 3": ("gemma3_text", BASE | dict(num_hidden_layers=4, head_dim=24, query_pre_attn_scalar=24, sliding_window=8, layer_types=SLIDING(3, 4), rope_parameters=GEMMA3_ROPE)),
    "phi3": ("phi3", BASE | dict(sliding_window=64)), "phi3 longrope, short": ("phi3", BASE | dict(max_position_embeddings=1024, original_max_position_embeddings=512, rope_parameters=LONG | dict(original_max_position_embeddings=512))),
    "phi3 longrope, long": ("phi3", BASE | dict(original_max_position_embeddings=8, rope_parameters=LONG | dict(original_max_position_embeddings=8))),
    "phi3 partial": ("phi3", BASE | dict(rope_parameters=dict(rope_type="default", rope_theta=1e4, partial_rotary_factor=0.75))),
    "gpt2": ("gpt2", GPT2), "gpt_neox": ("gpt_neox", BASE | dict(use_parallel_residual=True)), "gpt_neox serial": ("gpt_neox", BASE | dict(use_parallel_residual=False, tie_word_embeddings=True)),
    "falcon 7b": ("falcon", FALCON), "falcon 40b": ("falcon", FALCON | dict(new_decoder_architecture=True, num_kv_heads=2)),
    "falcon 11b": ("falcon", FALCON | dict(new_decoder_architecture=True, num_kv_heads=2, num_ln_in_parallel_attn=1)),
    "stablelm": ("stablelm", BASE | dict(use_qkv_bias=True)), "stablelm parallel": ("stablelm", BASE | dict(use_parallel_residual=True)),
    "smollm3": ("smollm3", BASE | dict(num_hidden_layers=5)), "olmo": ("olmo", BASE | dict(clip_qkv=1.0)), "olmo2": ("olmo2", BASE),
    "granite": ("granite", BASE | dict(embedding_multiplier=3.0, residual_multiplier=0.5, attention_multiplier=0.3, logits_scaling=2.0)),
    "starcoder2": ("starcoder2", BASE | dict(use_bias=True)), 
    "gpt_bigcode": ("gpt_bigcode", GPT2 | dict(multi_query=True)), "gpt_bigcode heads": ("gpt_bigcode", GPT2 | dict(multi_query=False)),
    "bloom": ("bloom", dict(vocab_size=96, hidden_size=64, n_layer=2, n_head=4, bos_token_id=1, eos_token_id=2)),
    "phi": ("phi", BASE | dict(num_key_value_heads=4)), "cohere": ("cohere", BASE | dict(logit_scale=0.5)),
    "cohere2": ("cohere2", BASE | dict(logit_scale=0.5, sliding_window=8, num_hidden_layers=5, layer_types=SLIDING(4, 5))),
    "granite biases": ("granite", BASE | dict(attention_bias=True, mlp_bias=True)),
}
EXPERTS = dict(num_local_experts=4, num_experts_per_tok=2, moe_intermediate_size=32, n_routed_experts=4, num_experts=4, n_shared_experts=1, num_hidden_layers=3,
               first_k_dense_replace=1, n_group=1, topk_group=1, norm_topk_prob=True, head_dim=16)
LATENT = dict(q_lora_rank=24, kv_lora_rank=32, qk_rope_head_dim=16, qk_nope_head_dim=20, v_head_dim=24, num_key_value_heads=4)
YARN = dict(rope_type="yarn", rope_theta=1e4, factor=4.0, original_max_position_embeddings=32, beta_fast=8.0, beta_slow=1.0)
DEEPSEEK = {n: v for n, v in (BASE | EXPERTS | LATENT).items() if n not in ("head_dim", "num_local_experts", "num_experts")}
# Adapters of these are on their mixers, beside none of latent attention
HYBRIDS = {
    "gpt_oss": ("gpt_oss", BASE | dict(num_local_experts=4, num_experts_per_tok=2, head_dim=16, sliding_window=8, rope_parameters=YARN | dict(truncate=True))),
    "deepseek_v3": ("deepseek_v3", DEEPSEEK | dict(routed_scaling_factor=2.5)),
    "deepseek_v3 groups, yarn": ("deepseek_v3", DEEPSEEK | dict(n_routed_experts=8, n_group=4, topk_group=2, rope_parameters=YARN | dict(mscale=1.0, mscale_all_dim=1.0))),
    "deepseek_v2": ("deepseek_v2", DEEPSEEK | dict(q_lora_rank=None, rope_parameters=YARN | dict(mscale=0.707, mscale_all_dim=0.707))),
    "glm4_moe_lite": ("glm4_moe_lite", DEEPSEEK | dict(mlp_layer_types=["dense", "sparse", "sparse"])),
    "youtu": ("youtu", BASE | LATENT | dict(pad_token_id=None)), "glm4_moe": ("glm4_moe", BASE | EXPERTS | dict(use_qk_norm=True, attention_bias=True)),
    "glm4_moe no norms": ("glm4_moe", BASE | EXPERTS), "dots1": ("dots1", BASE | EXPERTS | dict(num_key_value_heads=4)),
    "ernie4_5_moe": ("ernie4_5_moe", BASE | dict(moe_num_experts=4, moe_k=2, moe_intermediate_size=32, moe_num_shared_experts=1, moe_layer_start_index=1, num_hidden_layers=3)),
    "lfm2": ("lfm2", BASE | dict(num_hidden_layers=3, layer_types=["conv", "full_attention", "conv"], block_auto_adjust_ff_dim=False)),
    "lfm2_moe": ("lfm2_moe", BASE | dict(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32, num_dense_layers=1, num_hidden_layers=3, layer_types=["conv", "full_attention", "conv"])),
}
CALM = dict(rms_norm_eps=1e-4)  # delta nets answer small numbers to first tokens
DELTA = BASE | CALM | dict(head_dim=16, linear_num_key_heads=2, linear_num_value_heads=6, linear_key_head_dim=16, linear_value_head_dim=16, linear_conv_kernel_dim=4,
                           layer_types=["linear_attention", "full_attention", "linear_attention"], num_hidden_layers=3,
                           rope_parameters=dict(rope_type="default", rope_theta=1e4, partial_rotary_factor=0.5))
DELTA_EXPERTS = DELTA | dict(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32, shared_expert_intermediate_size=40, decoder_sparse_step=1)
MAMBA2 = BASE | dict(num_hidden_layers=3, mamba_n_heads=8, mamba_d_head=16, mamba_n_groups=2, mamba_d_state=16, mamba_d_conv=4, mamba_expand=2, mamba_chunk_size=8)
GRANITE = MAMBA2 | dict(layer_types=["mamba", "attention", "mamba"], shared_intermediate_size=96, num_experts_per_tok=2, num_local_experts=0,
                        embedding_multiplier=3.0, residual_multiplier=0.5, attention_multiplier=0.3, logits_scaling=2.0)
NEMOTRON = BASE | dict(num_hidden_layers=4, head_dim=16, mamba_num_heads=8, mamba_head_dim=16, n_groups=2, ssm_state_size=16, conv_kernel=4, chunk_size=8,
                       layers_block_type=["mamba", "attention", "mlp", "mamba"])
FALCON_H1 = MAMBA2 | dict(mamba_d_ssm=96, mamba_n_heads=6, mamba_rms_norm=True, mamba_norm_before_gate=False, head_dim=16, embedding_multiplier=2.0, lm_head_multiplier=0.7,
                          key_multiplier=0.6, mlp_multipliers=[0.8, 1.3], ssm_multipliers=[0.9, 1.1, 0.7, 1.2, 0.8], ssm_in_multiplier=1.4, ssm_out_multiplier=0.6,
                          attention_in_multiplier=1.2, attention_out_multiplier=0.7)
JAMBA = BASE | dict(num_hidden_layers=4, attn_layer_period=3, attn_layer_offset=1, expert_layer_period=2, expert_layer_offset=1, num_experts=4, num_experts_per_tok=2,
                    mamba_d_state=16, mamba_d_conv=4, mamba_expand=2, mamba_dt_rank=8)
GEMMA4 = BASE | dict(num_hidden_layers=4, num_key_value_heads=1, head_dim=16, global_head_dim=32, sliding_window=8, layer_types=["sliding_attention", "full_attention"] * 2,
                     hidden_size_per_layer_input=0, num_kv_shared_layers=0, use_double_wide_mlp=False, attention_k_eq_v=False, num_global_key_value_heads=None,
                     final_logit_softcapping=6.0, tie_word_embeddings=True)
LLAMA4 = BASE | dict(num_hidden_layers=4, head_dim=16, intermediate_size=32, intermediate_size_mlp=96, num_local_experts=4, num_experts_per_tok=1)
HYBRIDS |= {
    "qwen3_5": ("qwen3_5_text", DELTA), "qwen3_5_moe": ("qwen3_5_moe_text", DELTA_EXPERTS),
    "qwen3_5 a value head each": ("qwen3_5_text", DELTA | dict(linear_num_value_heads=2)),
    "qwen3_next": ("qwen3_next", DELTA_EXPERTS | dict(norm_topk_prob=True)),
    "granite 4 h": ("granitemoehybrid", GRANITE), "granite 4 h rope": ("granitemoehybrid", GRANITE | dict(position_embedding_type="rope")),
    "granite 4 h experts": ("granitemoehybrid", GRANITE | dict(num_local_experts=4, intermediate_size=32)),
    "granite 4": ("granitemoehybrid", GRANITE | dict(layer_types=["attention"] * 3, position_embedding_type="rope")),
    "granite 4 no rope": ("granitemoehybrid", GRANITE | dict(layer_types=["attention"] * 3)),
    "granite 4 experts": ("granitemoehybrid", GRANITE | dict(layer_types=["attention"] * 3, position_embedding_type="rope", num_local_experts=4, intermediate_size=32)),
    "bamba": ("bamba", MAMBA2 | dict(attn_layer_indices=[1])),
    "nemotron_h": ("nemotron_h", NEMOTRON),
    "nemotron_h experts": ("nemotron_h", NEMOTRON | dict(layers_block_type=["mamba", "attention", "moe", "moe"], n_routed_experts=4, num_experts_per_tok=2, moe_intermediate_size=32,
                                                         moe_shared_expert_intermediate_size=40, n_shared_experts=1, n_group=1, topk_group=1, routed_scaling_factor=2.5)),
    "nemotron_h latent": ("nemotron_h", NEMOTRON | dict(layers_block_type=["mamba", "attention", "moe", "moe"], n_routed_experts=4, num_experts_per_tok=2, moe_intermediate_size=32,
                                                         moe_shared_expert_intermediate_size=40, n_shared_experts=1, n_group=1, topk_group=1, routed_scaling_factor=2.5, moe_latent_size=24)),
    "falcon_h1": ("falcon_h1", FALCON_H1), "falcon_h1 tied, no norm": ("falcon_h1", FALCON_H1 | dict(mamba_rms_norm=False, tie_word_embeddings=True)),
    "mamba": ("mamba", dict(vocab_size=96, hidden_size=64, num_hidden_layers=2, state_size=16, time_step_rank=8, expand=2, bos_token_id=1, eos_token_id=2, pad_token_id=0)),
    "falcon_mamba": ("falcon_mamba", dict(vocab_size=96, hidden_size=64, num_hidden_layers=2, state_size=16, time_step_rank=8, expand=2, mixer_rms_eps=1e-5, bos_token_id=1, eos_token_id=2, pad_token_id=0)),
    "mamba2": ("mamba2", dict(vocab_size=96, hidden_size=64, num_hidden_layers=2, num_heads=8, head_dim=16, n_groups=2, state_size=16, expand=2, chunk_size=8, bos_token_id=1, eos_token_id=2, pad_token_id=0)),
    "jamba": ("jamba", JAMBA), "jamba dense": ("jamba", JAMBA | dict(num_experts=1, num_experts_per_tok=1)),
    "kimi_linear": ("kimi_linear", DEEPSEEK | CALM | dict(num_experts=4, q_lora_rank=None, routed_scaling_factor=2.5, layer_types=["linear_attention", "linear_attention", "full_attention"],
                                                          linear_num_heads=4, linear_head_dim=16)),
    "gemma4": ("gemma4_text", GEMMA4), "gemma4 inputs": ("gemma4_text", GEMMA4 | dict(hidden_size_per_layer_input=8, vocab_size_per_layer_input=96, num_kv_shared_layers=2, use_double_wide_mlp=True)),
    "gemma4 keys are values": ("gemma4_text", GEMMA4 | dict(attention_k_eq_v=True, num_global_key_value_heads=1, num_key_value_heads=2)),
    "gemma4 experts": ("gemma4_text", GEMMA4 | dict(enable_moe_block=True, num_experts=4, top_k_experts=2, moe_intermediate_size=32)),
    "gemma4_unified": ("gemma4_unified_text", GEMMA4),
    "llama4": ("llama4_text", LLAMA4), "llama4 rope, a dense layer each": ("llama4_text", LLAMA4 | dict(
        interleave_moe_layer_step=2, rope_parameters=LLAMA3 | dict(factor=16.0, high_freq_factor=1.0))),
}
WITHOUT_ADAPTERS = ("deepseek_v2", "deepseek_v3", "glm4_moe_lite", "youtu", "kimi_linear")


class Table(torch.nn.Module):
    """ggml_vec_gelu_f32 and its table."""

    def forward(self, x):
        y = torch.nn.functional.gelu(x.half().float(), approximate="tanh").half().float()
        return torch.where(x <= -10, torch.zeros_like(x), torch.where(x >= 10, x, y))


def as_in_llama_cpp(model):
    """GELU replaced; how many were."""
    made = torch.nn.GELU(approximate="tanh") if WITHOUT_TABLE else Table()
    count = 0
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if "gelu" in type(child).__name__.lower():
                setattr(module, name, made)
                count += 1
    return count


def logits_of(model, ids):
    with torch.no_grad():
        return model(input_ids=torch.tensor([ids]), use_cache=False).logits[0].float().numpy()


def greedy_of(model, ids, count):
    ids = list(ids)
    for _ in range(count):
        ids.append(int(logits_of(model, ids)[-1].argmax()))
    return ids[-count:]


def weights(folder):
    return {n: t for f in sorted(folder.glob("*.safetensors")) for n, t in load_file(f).items()}


def same_weights(model, back, kind):
    a, b = weights(model), weights(back)
    sums = "gemma" in kind or kind.startswith("qwen3_5") or kind == "qwen3_next"
    if kind == "falcon_h1":
        return "with multipliers"
    if a.keys() != b.keys():
        return f"names {sorted(a.keys() ^ b.keys())[:3]}"
    for name, value in a.items():
        near = (sums and "norm" in name) or name.endswith("A_log")
        if value.shape != b[name].shape or (not near and not torch.equal(value, b[name])) or float((value - b[name]).abs().max()) > 1.3e-7:
            return f"{name} differs"
    return "same bits"


def linears(model):
    """Those of mixers, but for the product that llama.cpp has in two, and what PEFT leaves alone beside a state space: it takes names of MLPs for experts as well."""
    mixers = (".self_attn.", ".conv.", ".linear_attn.", ".mamba.", ".mixer.")
    space = any(x in type(m).__name__.lower() for m in model.modules() for x in ("mamba", "falconh1"))
    left = ("kv_b_proj", "dt_proj", "latent_proj") + (("out_proj", "experts", "up_proj", "down_proj") if space else ())
    return sorted(n for n, m in model.named_modules() if isinstance(m, torch.nn.Linear) and any(x in n for x in mixers) and not any(x in n for x in left))


def case(name, kind, options, seed, work, other_head=False):
    draw = random.Random(f"{name}-{seed}")
    torch.manual_seed(draw.randrange(1 << 30))
    if other_head:
        options = options | dict(tie_word_embeddings=not AutoConfig.for_model(kind, **options).tie_word_embeddings)
    config = AutoConfig.for_model(kind, **options, attn_implementation="eager", dtype="float32")
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").float().eval()
    randomize(model, draw.randrange(1 << 30))
    model.save_pretrained(work / "model")
    model = AutoModelForCausalLM.from_pretrained(work / "model", attn_implementation="eager", dtype=torch.float32).eval()
    ids = np.random.default_rng(draw.randrange(1 << 30)).integers(3, 96, 16).tolist()

    def export(kind, *extra):
        nibble("export", "--model", work / "model", "--no-tokenizer", "--format", "gguf", "--type", kind, "--out", work / f"{kind}.gguf", "--force", *extra)
        return work / f"{kind}.gguf"

    plain = export("f32")
    nibble("import", "--model", plain, "--out", work / "back", "--force")
    back = same_weights(work / "model", work / "back", kind)
    np.save(work / "ids.npy", np.array([ids]))
    logits = []
    for folder in ("model", "back"):
        nibble("logits", "--model", work / folder, "--compute-dtype", "f32", "--ids", work / "ids.npy", "--out", work / "l.npy")
        logits.append(np.load(work / "l.npy"))
    back_difference = float(abs(logits[0] - logits[1]).max())

    loaded = Model(plain)
    got = loaded.logits(ids)
    as_it_is = float(abs(got - logits_of(model, ids)).max())
    count = as_in_llama_cpp(model)
    replaced = float(abs(got - logits_of(model, ids)).max())
    greedy = loaded.greedy(ids, 16) == greedy_of(model, ids, 16)
    lora = peft.get_peft_model(model, peft.LoraConfig(r=4, lora_alpha=8, target_modules=linears(model) if name in HYBRIDS else "all-linear", task_type="CAUSAL_LM", init_lora_weights=False)).eval()
    for n, parameter in lora.named_parameters():
        if "lora_B" in n:
            parameter.data.normal_(0, 0.1)
    lora.save_pretrained(work / "lora")
    wanted = logits_of(lora, ids)
    beside = 0.0
    if kind not in WITHOUT_ADAPTERS:
        nibble("export", "--model", work / "model", "--adapter", work / "lora", "--adapter-only", "--format", "gguf", "--out", work / "a.gguf", "--force")
        beside = float(abs(Model(plain, work / "a.gguf").logits(ids) - wanted).max())
    merged = float(abs(Model(export("f32", "--adapter", work / "lora")).logits(ids) - wanted).max())
    others = [float(abs(Model(export(t)).logits(ids) - got).max()) for t in ("f16", "bf16", "q8_0", "q4_0")]
    held = replaced < 1e-3 and beside < 1e-3 and merged < 1e-3 and greedy and back in ("same bits", "with multipliers") and back_difference < (1e-3 if kind == "falcon_h1" else 1e-5)
    print(f"| {name} | {as_it_is:.1e} | {f'{replaced:.1e}' if count else 'no GELU'} | {beside:.1e} | {merged:.1e} | {'same' if greedy else 'DIFFERS'} | "
          f"{', '.join(f'{o:.0e}' for o in others)} | {back}, logits {back_difference:.0e} | {'' if held else 'FAIL'}", flush=True)
    return held


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--families", default="")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--other-head", action="store_true", help="tied where it is not, and the other way round")
    options = parser.parse_args()
    lib.llama_log_set(quiet, ffi.NULL)
    lib.llama_backend_init()
    held = []
    for name, (kind, config) in (CASES | HYBRIDS).items():
        if options.other_head and kind in ("gemma", "gemma2", "cohere", "cohere2"):
            continue  # llama.cpp always takes the embedding: refused
        if options.families and kind not in options.families.split(","):
            continue
        with tempfile.TemporaryDirectory() as folder:
            try:
                held.append(case(name, kind, config, options.seed, Path(folder), options.other_head))
            except (Exception, SystemExit) as error:
                held.append(False)
                print(f"| {name} | {type(error).__name__}: {str(error)[:300]} | FAIL", flush=True)
    print(f"{sum(held)} of {len(held)} hold")
    return 0 if all(held) else 1


if __name__ == "__main__":
    sys.exit(main())
