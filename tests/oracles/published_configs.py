"""A config.json of Transformers in the words of files that were published before its last versions."""


def published(config, r):
    """The same configuration in the words of published files: rope_theta and rope_scaling, torch_dtype; now and then without
    keys that the family sets by itself."""
    c = dict(config)
    c["torch_dtype"] = c.pop("dtype", "float32")
    kind, parameters = c["model_type"], c.pop("rope_parameters", None)
    if kind in ("olmo3", "gemma3n_text", "gemma4_text", "ministral3"):
        c["rope_parameters"] = parameters
    elif kind == "gemma3_text" and parameters:
        full, local = parameters["full_attention"], parameters["sliding_attention"]
        c["rope_theta"], c["rope_local_base_freq"] = full["rope_theta"], local["rope_theta"]
        scaling = {k: v for k, v in full.items() if k not in ("rope_theta", "partial_rotary_factor")}
        c["rope_scaling"] = None if scaling.get("rope_type", "default") == "default" else scaling
    elif parameters:
        scaling = dict(parameters)
        theta, share = scaling.pop("rope_theta"), scaling.pop("partial_rotary_factor", None)
        c["rotary_emb_base" if kind == "gpt_neox" else "rope_theta"] = theta
        if share is not None:
            c["rotary_pct" if kind == "gpt_neox" else "partial_rotary_factor"] = share
        if scaling["rope_type"] == "default":
            scaling = None
        elif r.random() < 0.5:
            scaling["type"] = scaling.pop("rope_type")
        c["rope_scaling"] = scaling
    rule = kind in ("gemma2",) and c["layer_types"] == [("sliding_attention", "full_attention")[i % 2] for i in range(len(c["layer_types"]))]
    if rule:
        c.pop("layer_types")
    for key in [k for k, v in c.items() if v is None and k not in ("sliding_window", "rope_scaling", "final_logit_softcapping",
                                                                     "attn_logit_softcapping", "num_ln_in_parallel_attn")]:
        if r.random() < 0.5:
            c.pop(key)
    return c
