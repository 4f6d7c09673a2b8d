"""Holds `nibble combine` against PEFT's add_weighted_adapter on random adapters.

    NIBBLE=build/release/bin/nibble python tests/oracles/combine_peft.py
"""
import json, math, os, subprocess, sys, tempfile
from pathlib import Path
import torch, transformers
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file

NIBBLE = os.environ["NIBBLE"]


def base():
    torch.manual_seed(0)
    return transformers.AutoModelForCausalLM.from_config(transformers.LlamaConfig(
        vocab_size=61, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        tie_word_embeddings=False))


def adapter(directory, seed, **config):
    torch.manual_seed(seed)
    model = get_peft_model(base(), LoraConfig(task_type="CAUSAL_LM", **config))
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            parameter.data.normal_(0, 0.3)
    model.save_pretrained(directory)


def peft_changes(sources, weights, **arguments):
    model = PeftModel.from_pretrained(base(), sources[0], adapter_name="a0")
    for i, source in enumerate(sources[1:], 1):
        model.load_adapter(source, adapter_name=f"a{i}")
    model.add_weighted_adapter([f"a{i}" for i in range(len(sources))], weights, "made", **arguments)
    made = {}
    for name, module in model.named_modules():
        if "made" in getattr(module, "lora_A", {}) or "made" in getattr(module, "lora_embedding_A", {}):
            change = module.get_delta_weight("made").detach()
            made[name.removeprefix("base_model.model.")] = change / (math.sqrt(module.r["made"]) if module.use_rslora["made"] else 1)
    return made


def our_changes(directory):
    config, tensors = json.loads((directory / "adapter_config.json").read_text()), load_file(directory / "adapter_model.safetensors")
    made = {}
    for name, a in tensors.items():
        path = name.removeprefix("base_model.model.")
        if path.endswith(".lora_A.weight"):
            made[path.removesuffix(".lora_A.weight")] = tensors[name.replace("lora_A", "lora_B")] @ a * config["lora_alpha"] / config["r"]
        if path.endswith(".lora_embedding_A"):
            made[path.removesuffix(".lora_embedding_A")] = (tensors[name.replace("_A", "_B")] @ a).T * config["lora_alpha"] / config["r"]
    return made


def main():
    bad = 0
    with tempfile.TemporaryDirectory() as work:
        work = Path(work)
        adapter(work / "a", 1, r=4, lora_alpha=8, target_modules=["q_proj", "v_proj", "embed_tokens"])
        adapter(work / "b", 2, r=4, lora_alpha=3, use_rslora=True, target_modules=["q_proj", "up_proj", "embed_tokens"])
        adapter(work / "c", 3, r=2, lora_alpha=6, target_modules=["q_proj", "down_proj"], rank_pattern={"1.self_attn.q_proj": 3},
                alpha_pattern={"down_proj": 5})
        cases = [(m, ["a", "b"], [0.7, -0.4], {}) for m in ("linear", "cat", "svd")]
        cases += [(m, ["a", "b", "b"], [0.7, 0.4, -0.2], {"density": d, "majority_sign_method": s})
                  for m in ("ties", "ties_svd") for d in (0.3, 0.8) for s in ("total", "frequency")]
        cases += [(m, ["a", "b"], [0.7, 0.4], {"density": 0.4}) for m in ("magnitude_prune", "magnitude_prune_svd")]
        cases += [("cat", ["a", "c"], [1.0, 2.0], {}), ("svd", ["c", "a"], [1.0, 0.5], {"svd_rank": 3}), ("svd", ["a", "c"], [1.0, 0.5], {}),
                  ("ties", ["a", "b"], [1.0, 0.5], {"density": 1.0, "majority_sign_method": "total"})]
        for number, (method, names, weights, extra) in enumerate(cases):
            wanted = peft_changes([work / n for n in names], weights, combination_type=method, **extra)
            flags = [f for n, w in zip(names, weights) for f in ("--adapter", work / n, "--weight", w)]
            flags += ["--density", extra["density"]] if "density" in extra else []
            flags += ["--majority-sign", extra["majority_sign_method"]] if "majority_sign_method" in extra else []
            flags += ["--rank", extra["svd_rank"]] if "svd_rank" in extra else []
            out = work / f"out{number}"
            subprocess.run([NIBBLE, "combine", *map(str, flags), "--method", method, "--out", out], check=True, stdout=subprocess.DEVNULL)
            got = our_changes(out)
            PeftModel.from_pretrained(base(), out)
            worst = max(((got[k] - wanted[k]).norm() / wanted[k].norm()).item() for k in wanted) if set(got) == set(wanted) else math.inf
            bad += not worst < 1e-4
            print(f"{'ok   ' if worst < 1e-4 else 'FAIL '} {method} {names} {extra}: {worst:.1e}", flush=True)
    return bad


if __name__ == "__main__":
    sys.exit(1 if main() else 0)
