"""Which of the decoder-only text types of Transformers nibble opens, and how exactly.

    NIBBLE=build/release/bin/nibble python model_types.py [--types glm4,olmo3] [--cases DIR] [--markdown] [--full]

Makes a tiny random model of each type from its configuration class, with a LoRA adapter on its Linears, and compares the logits of
both and the adapter's gradients. One line each: opened (the largest difference of a logit against what is allowed, and the worst
gradient's), differs, or refused with nibble's reason. With --full also the model that a full run of two steps leaves, as Transformers
loads it. What is made stays in DIR and is not made again; with --small it is small enough
for tests/data/goldens/model_types (weights in bf16, short texts, rank 1), which tests/adapters/model_types_test.cpp reads. The types are those of
MODEL_FOR_CAUSAL_LM_MAPPING_NAMES that read text alone and are no encoders, drafts or composites.
"""
import argparse, json, os, shutil, subprocess, tempfile
from pathlib import Path

TYPES = """
llama mistral qwen2 qwen3 gemma3_text phi3 gemma2 cohere2 granite olmo2 smollm3 gpt2 gemma phi cohere olmo stablelm
starcoder2 gpt-sw3 gpt_bigcode gpt_neox gptj codegen falcon opt bloom internlm3 ministral seed_oss exaone4
iquestcoder cwm arcee jais2 vaultgemma gpt_neo biogpt mpt modernbert-decoder gpt_neox_japanese xglm openai-gpt ctrl
persimmon ministral3 olmo3 ernie4_5 glm glm4 hunyuan_v1_dense helium nanochat cohere_compass_text nemotron apertus
bitnet hyperclovax qwen3_moe mixtral olmoe granitemoe qwen2_moe flex_olmo granitemoeshared dbrx phimoe hunyuan_v1_moe
cohere2_moe mellum aria_text glm4_moe ernie4_5_moe minimax_m2 afmoe dots1 solar_open exaone_moe hy_v3 laguna kolibri1
beam gpt_oss mimo_v2_flash granite_swa flint granitemoe_swa deepseek_v3 glm4_moe_lite deepseek_v2 youtu minicpm3 axk1
longcat_flash gemma4_text gemma4_unified_text qwen3_5_text qwen3_5_moe_text qwen3_next olmo_hybrid granitemoehybrid
nemotron_h falcon_h1 bamba mamba2 zamba2 lfm2 lfm2_moe lfm3 kimi_linear bailing_hybrid llama4_text jamba mamba
falcon_mamba zamba exaone sarvam_mla sarvam_moe mistral4 lara_mini apertus1p5_text dory inkling2_loop_text deepseek_v32 glm_moe_dsa
deepseek_v4 minimax_m3_vl_text axk2 dots3_note_text hy_v4 qwen4_exp_text
gemma3n_text minimax recurrent_gemma zaya diffllama doge jetmoe rwkv xlstm inkling_text inkling2_text hrm_text cpmant
""".split()
LENGTH = 40
SIZES = dict(
    vocab_size=96, hidden_size=32, intermediate_size=48, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2, head_dim=8,
    max_position_embeddings=128, sliding_window=8, pad_token_id=0, bos_token_id=1, eos_token_id=2, initializer_range=0.02,
    # learned positions, the names of the first families
    n_positions=64, n_embd=32, n_layer=4, n_head=4, d_model=32, n_heads=4, n_layers=4, dff=48, num_layers=4, num_heads=4,
    # experts
    num_experts=4, num_local_experts=4, n_routed_experts=4, moe_num_experts=4, num_experts_per_tok=2, moe_k=2, top_k_experts=2,
    moe_intermediate_size=12, shared_expert_intermediate_size=16, shared_intermediate_size=16, intermediate_size_mlp=48,
    n_group=1, topk_group=1, first_k_dense_replace=1, moe_layer_start_index=1,
    # latent attention
    q_lora_rank=20, kv_lora_rank=16, qk_nope_head_dim=12, qk_rope_head_dim=8, v_head_dim=10,
    # linear attention, state spaces, convolutions
    linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=8, linear_value_head_dim=8,
    mamba_n_heads=4, mamba_d_head=16, mamba_d_state=8, mamba_d_ssm=64, mamba_num_heads=4, mamba_head_dim=16, ssm_state_size=8,
    mamba_n_groups=1, n_groups=1, state_size=8, chunk_size=16, mamba_chunk_size=16, time_step_rank=4, mamba_dt_rank=4)
NARROW = dict(intermediate_size=16, shared_intermediate_size=8, intermediate_size_mlp=16, moe_intermediate_size=8)  # with --small
# Delta rules answer small numbers to first tokens, of which a norm with a small epsilon makes noise.
CALM = dict(rms_norm_eps=1e-2)
GPT_NEO = dict(attention_types=[[["global", "local"], 2]], window_size=8)
LATENT = dict(num_key_value_heads=4)
YARN = dict(rope_type="yarn", factor=8.0, original_max_position_embeddings=16, mscale=1.0, mscale_all_dim=1.0, beta_fast=32.0, beta_slow=1.0,
            llama_4_scaling_beta=0.1)
OWN = {
    **{kind: LATENT for kind in ("deepseek_v2", "deepseek_v3", "minicpm3", "axk1", "longcat_flash",
                                 "deepseek_v32", "glm_moe_dsa", "axk2")},
    "glm4_moe_lite": LATENT | dict(num_hidden_layers=2), "gpt_neo": GPT_NEO,
    "gptj": dict(rotary_dim=4), "codegen": dict(rotary_dim=4), "opt": dict(ffn_dim=48, word_embed_proj_dim=32),
    "xglm": dict(ffn_dim=48, attention_heads=4, pad_token_id=None), "falcon": dict(num_kv_heads=2), "mpt": dict(max_seq_len=64),
    "modernbert-decoder": dict(local_attention=16, global_attn_every_n_layers=2, num_hidden_layers=4),
    "nemotron": dict(hidden_act="relu2"), "llama4_text": dict(attention_chunk_size=16, floor_scale=8, num_experts_per_tok=1),
    "helium": dict(head_dim=8, num_key_value_heads=4), "persimmon": dict(head_dim=None),
    "ministral3": dict(rope_parameters=YARN | dict(rope_theta=1e6)),
    "mistral4": LATENT | dict(num_hidden_layers=2, n_group=2, topk_group=1, rope_parameters=YARN | dict(rope_theta=1e4)),
    "youtu": LATENT | dict(pad_token_id=None),  # the row of a padding token becomes zero when Transformers loads it
    "qwen2": dict(use_sliding_window=True, max_window_layers=2), "qwen3": dict(use_sliding_window=True, max_window_layers=2),
    "hunyuan_v1_dense": dict(rope_parameters=dict(rope_type="dynamic", alpha=100.0, factor=1.0, rope_theta=10000.0)),
    # heads and experts for layers of all kinds; what is left of the sizes above
    "dots1": dict(n_routed_experts=4, n_shared_experts=1, num_experts_per_tok=2, norm_topk_prob=True, max_window_layers=2),
    "mimo_v2_flash": dict(v_head_dim=6), "lfm2_moe": dict(layer_types=["conv", "full_attention"] * 2, num_dense_layers=1),
    "olmo_hybrid": dict(linear_num_key_heads=4, num_hidden_layers=2, layer_types=["linear_attention", "full_attention"]), "mamba2": dict(num_heads=4, head_dim=16, n_groups=2),
    "qwen3_5_text": CALM, "qwen3_5_moe_text": CALM, "qwen3_next": CALM, "lara_mini": CALM,
    "sarvam_mla": LATENT | dict(q_lora_rank=None, rope_parameters=dict(rope_type="yarn", rope_theta=10000.0, factor=8.0, mscale=1.0,
        mscale_all_dim=1.0, original_max_position_embeddings=16, beta_fast=32.0, beta_slow=1.0)),
    "apertus1p5_text": dict(output_vocab_size=90),
    "kimi_linear": LATENT | CALM | dict(linear_num_heads=4, linear_head_dim=8, q_lora_rank=None, head_dim=None,
                                 layer_types=["linear_attention", "full_attention"] * 2),
    "bailing_hybrid": LATENT | CALM | dict(q_lora_rank=None, n_group=2, topk_group=1, layer_types=["linear_attention", "full_attention"] * 2),
    "jamba": dict(attn_layer_period=2, attn_layer_offset=1, expert_layer_period=2, expert_layer_offset=0),
    "cohere_compass_text": dict(layer_types=["sliding_attention", "full_attention"] * 2, rope_parameters={
        "sliding_attention": dict(rope_type="default", rope_theta=10000.0, mrope_section=[2, 1, 1]),
        "full_attention": dict(rope_type="default", rope_theta=50000.0, mrope_section=[2, 1, 1])}),
    **{kind: dict(index_head_dim=16, index_n_heads=2) | LATENT for kind in ("deepseek_v32", "glm_moe_dsa")},
    "zamba2": dict(layers_block_type=["hybrid", "linear_attention"] + ["hybrid"] * 3, num_hidden_layers=5, num_mem_blocks=2, adapter_rank=2,
                   use_shared_attention_adapter=True, use_mem_rope=True, n_mamba_heads=4, mamba_ngroups=2, num_key_value_heads=4,
                   head_dim=16, add_bias_linear=True),
    "cohere2_moe": dict(num_shared_experts=2, expert_selection_fn="sigmoid"),
    "granite_swa": dict(layer_rope_theta=[0, 10000.0, 500.0, 10000.0]), "granitemoe_swa": dict(layer_rope_theta=[0, 10000.0, 500.0, 10000.0]),
    "gemma3n_text": dict(layer_types=["sliding_attention", "full_attention"] * 2, hidden_size_per_layer_input=8, laurel_rank=6,
                         vocab_size_per_layer_input=80, num_kv_shared_layers=2, altup_num_inputs=3, intermediate_size=[48, 40, 48, 48],
                         activation_sparsity_pattern=[0.95, 0.5, 0.0, 0.0]),
    "mellum": dict(layer_types=["sliding_attention", "full_attention"] * 2),
    "afmoe": dict(mup_enabled=True), "phimoe": dict(lm_head_bias=True, attention_bias=True),
    "gpt_oss": dict(rope_parameters=dict(rope_type="yarn", rope_theta=150000.0, factor=8.0, original_max_position_embeddings=16, beta_fast=32.0,
                                         beta_slow=1.0, truncate=False)),
    # NAME+WHAT: another case of the type
    **{f"{kind}+biases": dict(mlp_bias=True) for kind in ("aria_text", "hy_v3")}, "deepseek_v2+biases": LATENT | dict(mlp_bias=True),
    **{f"nemotron_h+{name}": dict(moe_latent_size=16, moe_intermediate_size=16, moe_shared_expert_intermediate_size=24, mlp_bias=bias,
                                  layers_block_type=["linear_attention", "moe", "full_attention", "moe"])
       for name, bias in (("latent", False), ("latent_biases", True))},
}


def config_of(kind, small=False, **smaller):
    from transformers import CONFIG_MAPPING
    known = CONFIG_MAPPING[kind.partition("+")[0]]
    fields = set(getattr(known, "__dataclass_fields__", ())) | set(known.attribute_map)
    sizes = (SIZES | NARROW if small else SIZES) | smaller
    return known(**{k: v for k, v in sizes.items() if k in fields and k not in {known.attribute_map.get(o) for o in SIZES}} | OWN.get(kind, {}))


def auto_class(kind):
    """Transformers' class that makes language models of the type."""
    import transformers
    return transformers.AutoModelForImageTextToText if kind == "mistral4" else transformers.AutoModelForCausalLM


def make(kind, folder, small=False):
    """model/, lora/ and the numbers; returns why not."""
    import families, numpy, peft, torch
    from safetensors.torch import save_file
    from transformers.pytorch_utils import Conv1D
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    torch.manual_seed(0)
    model = auto_class(kind).from_config(config_of(kind, small), attn_implementation="eager")
    families.randomize(model, 1)
    (model.to(torch.bfloat16) if small else model).save_pretrained(folder / "model")
    (folder / "model/generation_config.json").unlink(missing_ok=True)
    model = auto_class(kind).from_pretrained(folder / "model", dtype=torch.float32, attn_implementation="eager").eval()
    g = torch.Generator().manual_seed(2)
    ids = torch.randint(3, 90, (2, 18 if small else LENGTH), generator=g)
    numpy.save(folder / "ids.npy", ids.numpy())
    with torch.no_grad():
        numpy.save(folder / "logits.npy", families.loss_of(model, ids, ids)[1].numpy())
    head = model.get_output_embeddings()
    # PEFT adapts neither in models with a state space
    skipped = ("out_proj", "conv1d") if kind == "falcon_h1" or "mamba" in " ".join(type(m).__name__.lower() for m in model.modules()) else ()
    targets = {n for n, m in model.named_modules() if isinstance(m, (torch.nn.Linear, Conv1D)) and m is not head}
    targets = sorted(n for n in targets if not n.endswith(skipped) and "router" not in n)
    torch.manual_seed(3)
    lora = peft.LoraConfig(r=1 if small else 4, lora_alpha=2 if small else 8, lora_dropout=0.0, target_modules=targets, task_type="CAUSAL_LM")
    adapted = peft.get_peft_model(model, lora).eval()
    with torch.no_grad():
        for name, p in adapted.named_parameters():
            if "lora_B" in name:
                p.copy_(torch.randn(p.shape, generator=g) * 0.1)
    adapted.peft_config["default"].base_model_name_or_path = "../model"
    adapted.save_pretrained(folder / "lora")
    (folder / "lora/README.md").unlink(missing_ok=True)
    loss, logits = families.loss_of(adapted, ids, ids)
    loss.backward()
    numpy.save(folder / "lora_logits.npy", logits.detach().numpy())
    gradients = {n.replace(".default", ""): p.grad.contiguous() for n, p in adapted.named_parameters() if p.grad is not None}
    save_file(gradients, folder / "lora_grads.safetensors")


def nibble(*arguments):
    done = subprocess.run([os.environ["NIBBLE"], *map(str, arguments)], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError((done.stderr.strip().splitlines() or [f"exit {done.returncode}"])[-1])


def logits_difference(got, want):
    import numpy
    a, b = numpy.load(got), numpy.load(want)
    return float(abs(a - b).max()), 1e-4 * max(1.0, float((b ** 2).mean() ** 0.5))


def compare(folder, scratch):
    """(what, logits, gradients, reason)"""
    import numpy
    from safetensors.numpy import load_file
    model, ids = ["--model", folder / "model", "--compute-dtype", "f32"], folder / "ids.npy"
    try:
        nibble("logits", *model, "--ids", ids, "--out", scratch / "l.npy")
        plain, allowed = logits_difference(scratch / "l.npy", folder / "logits.npy")
        model += ["--adapter", folder / "lora"]
        nibble("logits", *model, "--ids", ids, "--out", scratch / "l.npy")
        adapted, allowed_adapted = logits_difference(scratch / "l.npy", folder / "lora_logits.npy")
        nibble("gradients", *model, "--ids", ids, "--labels", ids, "--out", scratch / "g.safetensors")
    except RuntimeError as error:
        return "refused", None, None, str(error).removeprefix("error: ").replace(str(folder) + "/", "")
    got, want = load_file(scratch / "g.safetensors"), load_file(folder / "lora_grads.safetensors")
    # torch has no gradient of what a pass does not use (Zamba 2's layers hold adapters of each other)
    want |= {n: got[n] for n in got.keys() - want.keys() if not got[n].any()}
    if got.keys() != want.keys():
        return "differs", max(plain, adapted), None, f"gradients of other tensors: {sorted(got.keys() ^ want.keys())[:2]}"
    norm = lambda a: float(numpy.sqrt((a.astype("f8") ** 2).sum()))
    floor = 1e-6 * norm(numpy.array([norm(w) for w in want.values()]))
    worst = max(norm(got[n] - w) / (1e-3 * norm(w) + floor) for n, w in want.items())
    good = plain <= allowed and adapted <= allowed_adapted and worst <= 1
    return "opened" if good else "differs", max(plain, adapted), worst * 1e-3, ""


def full_run(kind, folder, scratch):
    """Why what a full run leaves is not the same model in Transformers; empty: it is."""
    import families, numpy, torch
    ids = numpy.load(folder / "ids.npy")
    (scratch / "d.jsonl").write_text("".join(json.dumps(dict(input_ids=row.tolist())) + "\n" for row in ids))
    recipe = dict(model=dict(path=str(folder / "model"), compute_dtype="f32"), data=dict(train=str(scratch / "d.jsonl"), format="tokens"),
                  train=dict(steps=2), output=dict(dir=str(scratch / "run")))
    (scratch / "r.json").write_text(json.dumps(recipe))
    shutil.rmtree(scratch / "run", ignore_errors=True)
    try:
        nibble("train", scratch / "r.json")
        nibble("logits", "--model", scratch / "run/model", "--compute-dtype", "f32", "--ids", folder / "ids.npy", "--out", scratch / "l.npy")
    except RuntimeError as error:
        return f"full run: {error}"
    model, info = auto_class(kind).from_pretrained(scratch / "run/model", dtype=torch.float32, attn_implementation="eager", output_loading_info=True)
    if missing := sorted(info["missing_keys"]):
        return f"a full run leaves no {missing[0]}"
    with torch.no_grad():
        numpy.save(scratch / "f.npy", families.loss_of(model.eval(), torch.from_numpy(ids), torch.from_numpy(ids))[1].numpy())
    difference, allowed = logits_difference(scratch / "l.npy", scratch / "f.npy")
    return "" if difference <= allowed else f"after a full run {difference:.1e}"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--types", default=",".join(TYPES))
    parser.add_argument("--cases", type=Path)
    parser.add_argument("--markdown", action="store_true")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--full", action="store_true")
    args = parser.parse_args()
    count = {}
    with tempfile.TemporaryDirectory() as scratch:
        cases = args.cases or Path(scratch) / "cases"
        for kind in args.types.split(","):
            folder, why = cases / kind, ""
            if not (folder / "lora_grads.safetensors").exists():
                try:
                    make(kind, folder, args.small)
                except Exception as error:
                    why = f"{type(error).__name__}: {str(error).splitlines()[0][:150] if str(error) else ''}"
            what, logits, gradients, reason = ("not made", None, None, why) if why else compare(folder, Path(scratch))
            if args.full and what == "opened" and (reason := full_run(kind, folder, Path(scratch))):
                what = "differs"
            count[what] = count.get(what, 0) + 1
            said = ["" if x is None else f"{x:.1e}" for x in (logits, gradients)]
            line = [kind, what, *said, reason]
            print("| " + " | ".join(line) + " |" if args.markdown else f"{kind:22s} {what:8s} {said[0]:8s} {said[1]:8s} {reason}", flush=True)
    print(", ".join(f"{n} {what}" for what, n in count.items()))


if __name__ == "__main__":
    main()
