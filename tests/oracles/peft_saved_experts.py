"""Experts and routers in modules_to_save, between nibble and PEFT.

    python3 tests/oracles/peft_saved_experts.py make tests/data/goldens/peft_saved_experts
writes TYPE/ for a few small mixtures: base/ (Transformers), adapter/ (PEFT), logits.safetensors with input_ids [2, 9],
base and adapter [2, 9, V] float32; and names.json: of the mixtures in model_types.py config.json, the target of a LoRA,
and by entry of modules_to_save the tensors that PEFT saves for it, with their shapes.

    NIBBLE=build/release/bin/nibble python3 tests/oracles/peft_saved_experts.py check [TYPE ...]
for every mixture and entry: nibble computes beside PEFT's adapter, merges it and goes on from it without a change of
its bits; PEFT computes beside nibble's, trained for some steps. Prints the largest difference of logits by their
size; fails above 1e-4 of it.
"""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import warnings

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
warnings.filterwarnings("ignore")
import numpy
import peft
import torch
import transformers
from safetensors.torch import load_file, save_file

import families
import model_types

# mixtures whose experts Transformers computes at all
TYPES = """mixtral qwen2_moe qwen3_moe olmoe granitemoe granitemoeshared granitemoe_swa phimoe hunyuan_v1_moe
cohere2_moe mellum aria_text glm4_moe ernie4_5_moe minimax_m2 afmoe dots1 solar_open exaone_moe hy_v3 laguna kolibri1
gpt_oss mimo_v2_flash flint deepseek_v3 deepseek_v2 glm4_moe_lite mistral4 axk1 flex_olmo qwen3_5_moe_text qwen3_next
nemotron_h+latent lfm2_moe kimi_linear bailing_hybrid llama4_text jamba sarvam_mla sarvam_moe lara_mini""".split()
ENTRIES = ("experts", "gate", "router", "mlp", "block_sparse_moe", "feed_forward")
COMMITTED = dict(mixtral=["mlp"], qwen2_moe=["experts", "gate"], granitemoeshared=["experts", "router"],
                 phimoe=["experts", "router"], ernie4_5_moe=["gate", "experts"])
SMALLER = dict(vocab_size=32, hidden_size=16, num_attention_heads=2, num_key_value_heads=1, num_hidden_layers=1,
               moe_intermediate_size=8, intermediate_size=8, shared_expert_intermediate_size=8,
               shared_intermediate_size=8, max_position_embeddings=64)


def logits_of(model, ids):
    with torch.no_grad():
        return model.eval()(torch.as_tensor(ids)).logits.float()


def write_base(kind, folder, **own):
    torch.manual_seed(0)
    model = model_types.auto_class(kind).from_config(model_types.config_of(kind, small=True, **own),
                                                     attn_implementation="eager")
    families.randomize(model, 1)
    model.save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    return load(folder)


def load(folder):
    kind = json.loads((folder / "config.json").read_text())["model_type"]
    model, info = model_types.auto_class(kind).from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True)
    problems = {key: value for key, value in info.items() if value and key != "error_msgs"}
    assert not problems, problems
    return model.eval()


def target_of(model):
    """A Linear of the first layer's mixer."""
    inside = ("mlp", "moe", "feed_forward", "experts")
    return next(name for name, module in model.named_modules() if isinstance(module, torch.nn.Linear)
                and ".layers." in name and not any(word in name for word in inside))


def adapt(model, entries):
    """modules_to_save far from the base."""
    torch.manual_seed(2)
    adapted = peft.get_peft_model(model, peft.LoraConfig(
        r=1, lora_alpha=2, target_modules=[target_of(model)], modules_to_save=entries, task_type="CAUSAL_LM"))
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if ".modules_to_save." in name or "lora_B" in name:
                parameter.add_(torch.randn(parameter.shape) * 0.2)
    adapted.peft_config["default"].base_model_name_or_path = "../base"
    return adapted.eval()


def shapes_of(state):
    prefix = "base_model.model."
    return {name.removeprefix(prefix): list(value.shape) for name, value in state.items() if ".lora_" not in name}


def saved_names(adapted):
    return shapes_of(peft.get_peft_model_state_dict(adapted))


def make(directory):
    names = {}
    with tempfile.TemporaryDirectory() as scratch:
        for kind in TYPES:
            base = pathlib.Path(scratch) / kind
            target, saved = target_of(write_base(kind, base)), {}
            for entry in ENTRIES:
                found = saved_names(adapt(load(base), [entry]))
                if found:
                    saved[entry] = found
            names[kind] = {"config": json.loads((base / "config.json").read_text()), "target": target, "saved": saved}
    directory.mkdir(parents=True, exist_ok=True)
    versions = {"torch": torch.__version__, "transformers": transformers.__version__, "peft": peft.__version__}
    record = {"versions": versions, "types": names}
    (directory / "names.json").write_text(json.dumps(record, separators=(",", ":")) + "\n")
    make_adapters(directory, versions)


def make_adapters(directory, versions):
    for kind, entries in COMMITTED.items():
        folder = directory / kind
        shutil.rmtree(folder, ignore_errors=True)
        sizes = SMALLER | ({"num_hidden_layers": 2} if kind == "ernie4_5_moe" else {})  # its first is dense
        base = write_base(kind, folder / "base", **sizes)
        ids = torch.randint(3, 32, (2, 9), generator=torch.Generator().manual_seed(3))
        results = {"input_ids": ids, "base": logits_of(base, ids)}
        adapted = adapt(base, entries)
        results["adapter"] = logits_of(adapted, ids)
        adapted.save_pretrained(folder / "adapter")
        (folder / "adapter/README.md").unlink(missing_ok=True)
        save_file(results, folder / "logits.safetensors", metadata=versions)


def nibble(*arguments):
    done = subprocess.run([os.environ["NIBBLE"], *map(str, arguments)], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(" ".join(map(str, arguments)) + "\n" + done.stderr)


def logits_beside(base, adapter, ids):
    return logits_of(peft.PeftModel.from_pretrained(load(base), adapter), ids).numpy()


def loads_in_peft(base, adapter):
    """Not where an entry names a module inside another one, as "mlp" the "shared_mlp" of Hunyuan's."""
    try:
        peft.PeftModel.from_pretrained(load(base), adapter)
    except KeyError:
        return False
    return True


def check(kind, scratch):
    base, ids = scratch / "base", numpy.random.default_rng(1).integers(3, 90, (2, 20))
    numpy.save(scratch / "ids.npy", ids)
    rows = [json.dumps({"input_ids": row.tolist(), "labels": row.tolist()}) for row in ids]
    (scratch / "data.jsonl").write_text("\n".join(rows * 4) + "\n")
    plain = logits_of(write_base(kind, base), ids).numpy()
    target, size = target_of(load(base)), max(1.0, float((plain ** 2).mean() ** 0.5))

    def ours(*words):
        nibble("logits", *words, "--compute-dtype", "f32", "--ids", scratch / "ids.npy", "--out", scratch / "out.npy")
        return numpy.load(scratch / "out.npy")

    def merged(adapter):
        shutil.rmtree(scratch / "merged", ignore_errors=True)
        nibble("merge", "--model", base, "--adapter", adapter, "--out", scratch / "merged", "--dtype", "f32")
        return logits_of(load(scratch / "merged"), ids).numpy()

    def train(run, lr, adapter):
        recipe = {
            "model": {"path": str(base), "compute_dtype": "f32"}, "adapter": adapter,
            "data": {"train": str(scratch / "data.jsonl"), "format": "tokens", "pack": False},
            "train": {"steps": 4, "microbatch_size": 2, "accumulate": 1}, "optimizer": {"lr": lr},
            "output": {"dir": str(run)}}
        (scratch / "recipe.json").write_text(json.dumps(recipe))
        nibble("train", scratch / "recipe.json")
        return load_file(run / "adapter/adapter_model.safetensors")

    worst = 0
    for entry in ENTRIES:
        adapted = adapt(load(base), [entry])
        if not saved_names(adapted):
            continue
        adapted.save_pretrained(scratch / "theirs")
        loads, numbers = loads_in_peft(base, scratch / "theirs"), {}
        if loads:
            wanted = logits_of(adapted, ids).numpy()
            numbers["PEFT's here"] = ours("--model", base, "--adapter", scratch / "theirs") - wanted
            numbers["merged"] = merged(scratch / "theirs") - wanted
        again = train(scratch / "again", 0, {"path": str(scratch / "theirs")})
        stored = load_file(scratch / "theirs/adapter_model.safetensors")
        assert again.keys() == stored.keys(), (kind, entry)
        assert all(torch.equal(again[name], stored[name]) for name in stored), (kind, entry)
        options = {"r": 1, "lora_alpha": 2, "target_modules": [target], "modules_to_save": [entry]}
        trained = train(scratch / "run", 1e-2, options)
        assert shapes_of(trained) == saved_names(adapted), (kind, entry)
        wanted = ours("--model", base, "--adapter", scratch / "run/adapter")
        if loads:
            numbers["ours in PEFT"] = logits_beside(base, scratch / "run/adapter", ids) - wanted
        numbers["ours merged"] = merged(scratch / "run/adapter") - wanted
        moved = abs(wanted - plain).max() / size
        found = {key: float(abs(value).max()) / size for key, value in numbers.items()}
        worst = max(worst, *found.values())
        print(f"{kind:18s} {entry:16s} " + ", ".join(f"{key} {value:.1e}" for key, value in found.items()) +
              f", moved by {moved:.2f}", flush=True)
        assert moved > 1e-2, "training did nothing"
        for done in ("theirs", "again", "run"):
            shutil.rmtree(scratch / done)
    return worst


if __name__ == "__main__":
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    if sys.argv[1] == "make":
        make(pathlib.Path(sys.argv[2]))
    else:
        results = {}
        for name in sys.argv[2:] or TYPES:
            with tempfile.TemporaryDirectory() as folder:
                results[name] = check(name, pathlib.Path(folder))
        too_far = {name: value for name, value in results.items() if value > 1e-4}
        print(f"{len(results)} types, the largest difference {max(results.values()):.1e} of the size of logits")
        sys.exit(f"too far: {too_far}" if too_far else 0)
