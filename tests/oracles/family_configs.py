"""Random small configurations of every family, with every option that changes the arithmetic. Used by families.py.

Each function takes a random.Random and gives (model_type, keyword arguments of its configuration class). Sizes are odd on
purpose: heads that are no power of two, vocabularies and widths that no vector length divides.
"""

ACTIVATIONS = ["silu", "gelu", "gelu_new", "gelu_fast", "gelu_pytorch_tanh", "relu", "quick_gelu", "relu2"]
LENGTH = 30  # tokens of a text; the lengths below are chosen around it
# heads and their sizes, MLP widths, vocabularies, layers
LARGE = dict(heads=[(2, 12), (4, 8), (3, 16), (6, 6), (4, 10), (8, 4)], mlp=(20, 91), vocabulary=(61, 131), layers=[2, 3, 4])
SMALL = dict(heads=[(2, 8), (4, 4), (3, 4)], mlp=(17, 23), vocabulary=(33, 42), layers=[2])
sizes = LARGE


def common(r):
    heads, size = r.choice(sizes["heads"])
    groups = r.choice([g for g in range(1, heads + 1) if heads % g == 0])
    return dict(vocab_size=r.randrange(*sizes["vocabulary"]), hidden_size=heads * size, intermediate_size=r.randrange(*sizes["mlp"]),
                num_hidden_layers=r.choice(sizes["layers"]), num_attention_heads=heads, num_key_value_heads=groups,
                max_position_embeddings=128, hidden_act=r.choice(ACTIVATIONS), tie_word_embeddings=r.random() < 0.5,
                bos_token_id=1, eos_token_id=2, pad_token_id=0)


def eps(r):
    return r.choice([1e-6, 1e-5, 1e-3])


def head_size(c):
    return c.get("head_dim") or c["hidden_size"] // c["num_attention_heads"]


def rope(r, c, share=None, kinds=("default", "linear", "dynamic", "yarn", "longrope", "llama3"), weight=0.6):
    """rope_parameters; sets max_position_embeddings where the kind asks for it."""
    kind = r.choice(kinds) if r.random() < weight else "default"
    p = dict(rope_type=kind, rope_theta=r.choice([10000.0, 500.0, 1e6]))
    if share is not None:
        p["partial_rotary_factor"] = share
    pairs = (int(head_size(c) * (share or 1)) + 1) // 2
    if kind == "dynamic" and pairs < 2:  # Transformers divides by zero
        kind = p["rope_type"] = "linear"
    if kind == "linear":
        p["factor"] = r.choice([2.0, 3.5])
    if kind == "dynamic":
        p["factor"] = r.choice([2.0, 4.0])
        c["max_position_embeddings"] = r.choice([LENGTH // 2, 64])
    if kind == "yarn":
        p.update(factor=r.choice([2.0, 4.0]), original_max_position_embeddings=r.choice([16, 32]))
        if r.random() < 0.3:
            p["attention_factor"] = 1.3
        if r.random() < 0.4:
            p.update(beta_fast=r.choice([4.0, 16.0]), beta_slow=r.choice([0.5, 1.0]))
        if r.random() < 0.3:
            p.update(mscale=0.7, mscale_all_dim=1.1)
        if r.random() < 0.3:
            p["truncate"] = False
    if kind == "longrope":
        p.update(short_factor=[round(r.uniform(1, 2), 3) for _ in range(pairs)],
                 long_factor=[round(r.uniform(2, 8), 3) for _ in range(pairs)],
                 original_max_position_embeddings=r.choice([LENGTH // 2, LENGTH, 64]))
        if r.random() < 0.3:
            p["attention_factor"] = 1.2
        if r.random() < 0.3:
            p["factor"] = 3.0
    if kind == "llama3":
        p.update(factor=r.choice([2.0, 8.0]), low_freq_factor=1.0, high_freq_factor=r.choice([2.0, 4.0]),
                 original_max_position_embeddings=r.choice([16, 64]))
    c["rope_parameters"] = p
    return c


def llama(r):
    c = common(r)
    c.update(attention_bias=r.random() < 0.4, mlp_bias=r.random() < 0.4, rms_norm_eps=eps(r))
    if r.random() < 0.3:
        c["head_dim"] = r.choice([4, 10, 16])
    return "llama", rope(r, c)


def mistral(r):
    c = common(r)
    c.update(sliding_window=r.choice([None, 5, 8]), rms_norm_eps=eps(r))
    if r.random() < 0.4:
        c["head_dim"] = r.choice([6, 16])
    return "mistral", rope(r, c)


def windows(r, c):
    c.update(use_sliding_window=r.random() < 0.6, sliding_window=7, max_window_layers=r.choice([0, 1, 2]), rms_norm_eps=eps(r))
    if r.random() < 0.4 and c["use_sliding_window"]:
        c["layer_types"] = [r.choice(["full_attention", "sliding_attention"]) for _ in range(c["num_hidden_layers"])]


def qwen2(r):
    c = common(r)
    windows(r, c)
    return "qwen2", rope(r, c)


def qwen3(r):
    c = common(r)
    windows(r, c)
    c.update(head_dim=r.choice([6, 16]), attention_bias=r.random() < 0.3)
    return "qwen3", rope(r, c)


def gemma(r):
    c = common(r)
    c.update(head_dim=r.choice([8, 14]), attention_bias=r.random() < 0.3, rms_norm_eps=eps(r))
    return "gemma", rope(r, c)


def gemma2(r):
    c = common(r)
    c["hidden_activation"] = c.pop("hidden_act")
    c.update(head_dim=r.choice([8, 14]), query_pre_attn_scalar=r.choice([8, 21]), sliding_window=r.choice([6, 9]),
             attn_logit_softcapping=r.choice([None, 3.0]), final_logit_softcapping=r.choice([None, 5.0]), attention_bias=r.random() < 0.3)
    if r.random() < 0.3:
        c["layer_types"] = [r.choice(["full_attention", "sliding_attention"]) for _ in range(c["num_hidden_layers"])]
    return "gemma2", rope(r, c)


def gemma3(r):
    c = common(r)
    c["hidden_activation"] = c.pop("hidden_act")
    c.update(head_dim=r.choice([8, 14]), query_pre_attn_scalar=r.choice([8, 21]), sliding_window=r.choice([6, 9]),
             final_logit_softcapping=r.choice([None, 5.0]), attention_bias=r.random() < 0.3, num_hidden_layers=r.choice([3, 7]))
    full = rope(r, dict(c), kinds=("linear",))["rope_parameters"]
    c["rope_parameters"] = dict(full_attention=full, sliding_attention=dict(rope_type="default", rope_theta=r.choice([10000.0, 300.0])))
    kinds = ["full_attention", "sliding_attention"]
    if r.random() < 0.5:
        # one of each, or Transformers has no rope for the kind that is not there
        c["layer_types"] = kinds + [r.choice(kinds) for _ in range(c["num_hidden_layers"] - 2)]
    else:
        c["sliding_window_pattern"] = 3
    return "gemma3_text", c


def phi3(r):
    c = common(r)
    c.update(sliding_window=r.choice([None, 6]), rms_norm_eps=eps(r), num_hidden_layers=2)
    share = r.choice([s for s in (1.0, 0.75, 0.5) if int(head_size(c) * s) in range(2, 99, 2)])
    c = rope(r, c, share, kinds=("longrope",))
    c["original_max_position_embeddings"] = c["rope_parameters"].get("original_max_position_embeddings", 64)
    return "phi3", c


def gpt_neox(r):
    c = common(r)
    c.pop("num_key_value_heads")
    c.update(use_parallel_residual=r.random() < 0.5, attention_bias=r.random() < 0.7, layer_norm_eps=eps(r))
    share = r.choice([s for s in (0.25, 0.5, 1.0) if int(head_size(c) * s) in range(2, 99, 2)])
    return "gpt_neox", rope(r, c, share)


def falcon(r):
    c = common(r)
    groups = c.pop("num_key_value_heads")
    c["activation"] = c.pop("hidden_act")
    c["ffn_hidden_size"] = c.pop("intermediate_size")
    c.update(bias=r.random() < 0.5, layer_norm_epsilon=eps(r), alibi=r.random() < 0.4)
    form = r.choice(["7b", "rw", "40b", "11b", "serial"])
    if form == "7b":
        c.update(multi_query=True, parallel_attn=True)
    if form == "rw":
        c.update(multi_query=False, parallel_attn=False)
    if form == "serial":
        c.update(multi_query=True, parallel_attn=False)
    if form in ("40b", "11b"):
        c.update(new_decoder_architecture=True, num_kv_heads=groups, parallel_attn=True)
    if form == "11b":
        c.update(num_ln_in_parallel_attn=1)
    return "falcon", c if c["alibi"] else rope(r, c)


def gpt2(r):
    c = common(r)
    made = dict(vocab_size=c["vocab_size"], n_embd=c["hidden_size"], n_layer=c["num_hidden_layers"], n_head=c["num_attention_heads"],
                n_positions=r.choice([64, 65]), n_inner=r.choice([None, 50]), activation_function=c["hidden_act"], bos_token_id=1,
                eos_token_id=1, scale_attn_weights=r.random() < 0.8, layer_norm_epsilon=eps(r), tie_word_embeddings=r.random() < 0.7,
                resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
    return "gpt2", made


def gpt2_own(r):
    kind, c = gpt2(r)
    c["scale_attn_by_inverse_layer_idx"] = r.random() < 0.5
    return kind, c


def gpt_bigcode(r):
    _, c = gpt2(r)
    c["multi_query"] = r.random() < 0.6
    return "gpt_bigcode", c


def gptj(r):
    _, c = gpt2(r)
    c.pop("scale_attn_weights")
    c["rotary_dim"] = r.choice([d for d in (2, 4, 8, 12) if d <= c["n_embd"] // c["n_head"]])
    c["tie_word_embeddings"] = False
    return "gptj", c


def codegen(r):
    _, c = gptj(r)
    heads = r.choice([4, 8])
    c.update(n_head=heads, n_embd=heads * 6, rotary_dim=r.choice([2, 4, 6]), n_ctx=64)
    return "codegen", c


def opt(r):
    c = common(r)
    c.pop("num_key_value_heads")
    c["ffn_dim"] = c.pop("intermediate_size")
    c["activation_function"] = c.pop("hidden_act")
    c.update(do_layer_norm_before=r.random() < 0.5, enable_bias=r.random() < 0.7, layer_norm_elementwise_affine=r.random() < 0.8,
             _remove_final_layer_norm=r.random() < 0.2, dropout=0.0, pad_token_id=1, max_position_embeddings=60)
    if r.random() < 0.5:
        c["word_embed_proj_dim"] = r.choice([14, 40])
    return "opt", c


def stablelm(r):
    c = common(r)
    c.update(use_qkv_bias=r.random() < 0.5, qk_layernorm=r.random() < 0.5, use_parallel_residual=r.random() < 0.5, layer_norm_eps=eps(r))
    share = r.choice([s for s in (0.25, 0.5, 1.0) if int(head_size(c) * s) in range(2, 99, 2)])
    return "stablelm", rope(r, c, share)


def smollm3(r):
    c = common(r)
    c.update(attention_bias=r.random() < 0.3, mlp_bias=r.random() < 0.3, rms_norm_eps=eps(r), num_hidden_layers=r.choice([3, 4, 5]))
    if r.random() < 0.5:
        c["no_rope_layers"] = [r.choice([0, 1]) for _ in range(c["num_hidden_layers"])]
    else:
        c["no_rope_layer_interval"] = r.choice([2, 3, 4])
    if r.random() < 0.4:
        c.update(use_sliding_window=True, sliding_window=6)
    return "smollm3", rope(r, c)


def olmo(r):
    c = common(r)
    c.update(attention_bias=r.random() < 0.3, clip_qkv=r.choice([None, 0.02, 0.05, 0.3]))
    return "olmo", rope(r, c)


def olmo2(r):
    c = common(r)
    c.update(attention_bias=r.random() < 0.3, rms_norm_eps=eps(r))
    return "olmo2", rope(r, c)


def granite(r):
    c = common(r)
    c.update(attention_bias=r.random() < 0.4, mlp_bias=r.random() < 0.4, rms_norm_eps=eps(r), embedding_multiplier=r.choice([1.0, 3.0]),
             logits_scaling=r.choice([1.0, 1.7]), residual_multiplier=r.choice([1.0, 0.4]), attention_multiplier=r.choice([0.2, 0.5]))
    return "granite", rope(r, c)


def starcoder2(r):
    c = common(r)
    c.update(use_bias=r.random() < 0.7, sliding_window=r.choice([None, 6]), norm_epsilon=eps(r))
    return "starcoder2", rope(r, c)


def bloom(r):
    c = common(r)
    return "bloom", dict(vocab_size=c["vocab_size"], hidden_size=c["hidden_size"], n_layer=c["num_hidden_layers"],
                         n_head=c["num_attention_heads"], layer_norm_epsilon=eps(r), tie_word_embeddings=c["tie_word_embeddings"],
                         apply_residual_connection_post_layernorm=r.random() < 0.3, bos_token_id=1, eos_token_id=2, pad_token_id=3)


def phi(r):
    c = common(r)
    c.update(qk_layernorm=r.random() < 0.5, layer_norm_eps=eps(r), tie_word_embeddings=False)
    share = r.choice([s for s in (0.5, 1.0) if int(head_size(c) * s) in range(2, 99, 2)])
    return "phi", rope(r, c, share)


def cohere(r):
    c = common(r)
    c.update(attention_bias=r.random() < 0.4, layer_norm_eps=eps(r), logit_scale=r.choice([0.0625, 0.5]), use_qk_norm=r.random() < 0.5)
    return "cohere", rope(r, c, kinds=("default", "linear", "llama3"))


def cohere2(r):
    c = common(r)
    c.update(attention_bias=r.random() < 0.4, layer_norm_eps=eps(r), logit_scale=r.choice([0.0625, 0.5]), sliding_window=6,
             num_hidden_layers=r.choice([4, 5]))
    return "cohere2", rope(r, c, kinds=("default", "linear", "llama3"))


def later(kind, *dropped, share=None, kinds=("default", "llama3"), **own):
    """A family that needs no more than some options of its own; where one of them is a list it is chosen from."""
    def make(r):
        c = common(r)
        for key in dropped:
            c.pop(key)
        c.update({key: r.choice(value) if isinstance(value, list) else value for key, value in own.items()})
        return kind, c if "rope_parameters" in own or kinds is None else rope(r, c, share, kinds)
    return make


def by_types(r, kind, c):
    """layer_types of one of each kind and more, windows of 6."""
    c.update(sliding_window=6, num_hidden_layers=4, layer_types=["sliding_attention", "full_attention"] + [
        r.choice(["sliding_attention", "full_attention"]) for _ in range(2)])
    return kind, c


def olmo3(r):
    kind, c = by_types(r, "olmo3", common(r))
    yarn = dict(rope_type="yarn", rope_theta=500000.0, factor=8.0, original_max_position_embeddings=16, attention_factor=1.2)
    c["rope_parameters"] = dict(full_attention=yarn, sliding_attention=dict(rope_type="default", rope_theta=500000.0))
    return kind, c


def gemma4(r):
    c = common(r)
    c["hidden_activation"] = c.pop("hidden_act")
    shared = r.random() < 0.5
    c.update(num_hidden_layers=4, num_key_value_heads=1, head_dim=8, global_head_dim=16, sliding_window=6, tie_word_embeddings=True,
             layer_types=["sliding_attention", "full_attention"] * 2, hidden_size_per_layer_input=8 if shared else 0,
             vocab_size_per_layer_input=c["vocab_size"], num_kv_shared_layers=2 if shared else 0, use_double_wide_mlp=shared,
             attention_k_eq_v=not shared, num_global_key_value_heads=None if shared else 1, final_logit_softcapping=6.0)
    return "gemma4_text", c


def gemma3n(r):
    c = common(r)
    c["hidden_activation"] = c.pop("hidden_act")
    width = c["intermediate_size"]
    # twice as wide where the gates are not cut off; ids beyond the table of the layers' inputs; a published list
    c.update(num_hidden_layers=4, num_key_value_heads=1, head_dim=8, sliding_window=6, tie_word_embeddings=True,
             layer_types=["sliding_attention", "full_attention"] * 2, hidden_size_per_layer_input=6,
             vocab_size_per_layer_input=c["vocab_size"] - 4, num_kv_shared_layers=2, laurel_rank=5, altup_num_inputs=r.choice([2, 3]),
             altup_active_idx=r.choice([0, 1]), altup_correct_scale=r.random() < 0.7, final_logit_softcapping=6.0,
             intermediate_size=[width, width, 2 * width, 2 * width], activation_sparsity_pattern=[0.9, 0.5, 0.0, 0.0])
    return "gemma3n_text", c


def helium(r):  # the output projection is as wide as the model
    c = common(r)
    return "helium", rope(r, dict(c, head_dim=head_size(c)))


def latent(kind, **own):
    def make(r):
        c = common(r)
        c.update(own, num_key_value_heads=c["num_attention_heads"], q_lora_rank=r.choice([None, 10]), kv_lora_rank=12,
                 qk_nope_head_dim=6, qk_rope_head_dim=4, v_head_dim=r.choice([6, 10]), pad_token_id=None)
        return kind, c
    return make


YARN = dict(rope_type="yarn", rope_theta=1e6, factor=8.0, original_max_position_embeddings=8, mscale=1.0, mscale_all_dim=1.0,
            beta_fast=32.0, beta_slow=1.0, llama_4_scaling_beta=0.1)
LATER = dict(
    glm=later("glm", share=0.5, attention_bias=[True, False], head_dim=8), glm4=later("glm4", share=0.5, head_dim=8),
    ministral3=later("ministral3", head_dim=8, rope_parameters=YARN), ministral=lambda r: by_types(r, "ministral", dict(common(r), head_dim=8)),
    exaone4=lambda r: by_types(r, "exaone4", common(r)), cwm=lambda r: by_types(r, "cwm", dict(common(r), head_dim=8)), olmo3=olmo3,
    ernie4_5=later("ernie4_5", head_dim=8, use_bias=[True, False]), helium=helium,
    hunyuan=later("hunyuan_v1_dense", head_dim=8, rope_parameters=dict(rope_type="dynamic", alpha=100.0, factor=1.0, rope_theta=10000.0)),
    seed_oss=later("seed_oss", head_dim=8, attention_out_bias=[True, False]), arcee=later("arcee", hidden_act="relu2"),
    internlm3=later("internlm3", head_dim=8), jais2=later("jais2"), nanochat=later("nanochat", kinds=("default",)),
    nemotron=later("nemotron", share=0.5, hidden_act="relu2", kinds=("default",)), apertus=later("apertus", hidden_act="xielu"),
    bitnet=later("bitnet"), hyperclovax=later("hyperclovax", use_post_norm=[True, False], residual_multiplier=0.4, logits_scaling=1.7),
    gemma3n=gemma3n, gemma4=gemma4, youtu=latent("youtu", rope_interleave=True), minicpm3=latent("minicpm3", scale_emb=3, scale_depth=1.4, dim_model_base=16),
    gpt_neo=later("gpt_neo", "hidden_act", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", kinds=None, num_layers=2,
                  num_heads=2, attention_types=[[[["global", "local"], 1]]], window_size=5),
    biogpt=later("biogpt", "num_key_value_heads", kinds=None, tie_word_embeddings=True, layer_norm_eps=1e-2),
    openai_gpt=later("openai-gpt", "hidden_act", "num_key_value_heads", "intermediate_size", kinds=None, tie_word_embeddings=True),
    mpt=later("mpt", "hidden_act", "num_key_value_heads", "intermediate_size", "max_position_embeddings", kinds=None,
              tie_word_embeddings=True, max_seq_len=64),
    persimmon=later("persimmon", "num_key_value_heads", share=0.5, kinds=("default",), qk_layernorm=[True, False]))


def lfm2(r):
    c = common(r)
    c.pop("hidden_act")
    layers = c["num_hidden_layers"] = max(c["num_hidden_layers"], 2)
    c.update(norm_eps=eps(r), conv_L_cache=r.choice([2, 3, 4]), conv_bias=r.random() < 0.5, block_multiple_of=r.choice([8, 16]),
             block_auto_adjust_ff_dim=r.random() < 0.6, layer_types=["conv", "full_attention"] + [r.choice(["conv", "full_attention"])
                                                                                                  for _ in range(layers - 2)])
    return "lfm2", c


def qwen3_5(r):
    c = common(r)
    layers = c["num_hidden_layers"] = max(c["num_hidden_layers"], 2)
    keys = r.choice([1, 2])
    c.update(head_dim=16, rms_norm_eps=eps(r), attention_bias=r.random() < 0.3, linear_conv_kernel_dim=r.choice([3, 4]),
             linear_num_key_heads=keys, linear_num_value_heads=keys * r.choice([1, 2, 3]), linear_key_head_dim=r.choice([6, 8]),
             linear_value_head_dim=r.choice([5, 8]),
             layer_types=["linear_attention", "full_attention"] + [r.choice(["linear_attention", "full_attention"]) for _ in range(layers - 2)])
    return "qwen3_5_text", rope(r, c, 0.25, kinds=("default",))


def mamba(r, c):
    groups = r.choice([1, 2])
    heads = groups * r.choice([2, 3])
    c.update(mamba_n_groups=groups, mamba_n_heads=heads, mamba_d_state=r.choice([5, 8]), mamba_d_conv=r.choice([3, 4]),
             mamba_conv_bias=r.random() < 0.7, mamba_proj_bias=r.random() < 0.3, mamba_chunk_size=8, rms_norm_eps=eps(r))
    if r.random() < 0.4:
        c["time_step_limit"] = [0.2, 1.5]
    return heads


def falcon_h1(r):
    c = common(r)
    c["mamba_d_ssm"] = mamba(r, c) * r.choice([4, 8])
    c.update(mamba_d_head=c["mamba_d_ssm"] // c["mamba_n_heads"], mamba_rms_norm=r.random() < 0.6, mamba_norm_before_gate=r.random() < 0.5,
             projectors_bias=r.random() < 0.3, attention_bias=r.random() < 0.3, mlp_bias=r.random() < 0.3, key_multiplier=0.6,
             attention_in_multiplier=1.1, attention_out_multiplier=0.9, embedding_multiplier=2.0, lm_head_multiplier=0.7,
             mlp_multipliers=[0.9, 0.7], ssm_in_multiplier=1.25, ssm_out_multiplier=0.8, ssm_multipliers=[0.9, 0.8, 0.7, 0.6, 0.5])
    return "falcon_h1", rope(r, c, kinds=("default", "linear"))


def whole_heads(r, c):  # of Mamba, that divide twice the width
    mamba(r, c)
    c["mamba_n_groups"], c["mamba_n_heads"] = r.choice([(1, 2), (2, 4), (1, 4)])


def bamba(r):
    c = common(r)
    whole_heads(r, c)
    layers = c["num_hidden_layers"] = max(c["num_hidden_layers"], 2)
    c.update(attention_bias=r.random() < 0.3, mlp_bias=r.random() < 0.3, attn_layer_indices=[r.randrange(layers)])
    return "bamba", rope(r, c, 0.5, kinds=("default", "linear"))


def granite_hybrid(r):
    c = common(r)
    whole_heads(r, c)
    layers = c["num_hidden_layers"] = max(c["num_hidden_layers"], 2)
    c.update(attention_bias=r.random() < 0.3, num_local_experts=0, shared_intermediate_size=c["intermediate_size"],
             position_embedding_type=r.choice(["rope", "nope"]), embedding_multiplier=3.0, logits_scaling=1.7, residual_multiplier=0.4,
             attention_multiplier=0.2,
             layer_types=["mamba", "attention"] + [r.choice(["mamba", "attention"]) for _ in range(layers - 2)])
    return "granitemoehybrid", rope(r, c, kinds=("default", "linear"))


def nemotron_h(r):
    c = common(r)
    c.pop("hidden_act")
    layers = ["linear_attention", "mlp", "full_attention"] + [r.choice(["linear_attention", "mlp"]) for _ in range(r.choice([0, 1]))]
    groups = r.choice([1, 2])
    c.update(num_hidden_layers=len(layers), layers_block_type=layers, head_dim=r.choice([6, 8]), mlp_bias=r.random() < 0.3,
             mamba_num_heads=groups * 3, mamba_head_dim=4, n_groups=groups, ssm_state_size=r.choice([5, 8]), conv_kernel=4, chunk_size=8,
             use_bias=r.random() < 0.3, use_conv_bias=r.random() < 0.7, layer_norm_epsilon=eps(r), tie_word_embeddings=False)
    return "nemotron_h", c


def zamba2(r):  # two blocks in turn, with adapters of four layers; few channels make noise of a smaller epsilon
    c = dict(common(r), hidden_size=4, num_attention_heads=2, num_key_value_heads=2, num_hidden_layers=4, intermediate_size=5, adapter_rank=2, mamba_d_state=3)
    c.update(layers_block_type=["hybrid"] * 4, num_mem_blocks=2, use_shared_attention_adapter=True, use_mem_rope=True, tie_word_embeddings=True, rms_norm_eps=1e-2,
             mamba_ngroups=2, n_mamba_heads=4, mamba_d_conv=2, chunk_size=8, hidden_act=r.choice(["gelu", "silu"]), add_bias_linear=r.random() < 0.3)
    return "zamba2", rope(r, c, kinds=("default", "linear"))


FAMILIES = dict(llama=llama, mistral=mistral, qwen2=qwen2, qwen3=qwen3, gemma=gemma, gemma2=gemma2, gemma3=gemma3, phi3=phi3,
                gpt_neox=gpt_neox, falcon=falcon, gpt2=gpt2_own, gpt_bigcode=gpt_bigcode, gptj=gptj, codegen=codegen, opt=opt,
                stablelm=stablelm, smollm3=smollm3, olmo=olmo, olmo2=olmo2, granite=granite, starcoder2=starcoder2, bloom=bloom,
                phi=phi, cohere=cohere, cohere2=cohere2, lfm2=lfm2, qwen3_5=qwen3_5, falcon_h1=falcon_h1,
                bamba=bamba, granite_hybrid=granite_hybrid, nemotron_h=nemotron_h, zamba2=zamba2, **LATER)
