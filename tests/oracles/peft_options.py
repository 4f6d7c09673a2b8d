"""Runs of PEFT: random small models or the stories model, options of LoraConfig, eight AdamW steps.

    python tests/oracles/peft_options.py OUT [NAME ...]          NAME: a case below, or random-N: options drawn with N as the seed
    python tests/oracles/peft_options.py tests/data/peft --committed     those that tests/adapters read
    python tests/oracles/peft_options.py tests/data/peft --loraplus      loraplus.safetensors of two of them

A case: case.json (LoraConfig's arguments, the recipe in nibble's words, the losses), data.jsonl (two lines a step), init/ and after8/
(the adapter before and after), ids.npy with logits_before.npy, logits_after.npy and logits_merged.npy. loraplus.safetensors: some of the
adapter's tensors after three steps with PEFT's LoRA+ and a linear schedule, from init/ and with the first data; the losses beside them.

Known not to hold: bias-all-gpt2 and bias-lora-gpt2 train the bias of keys, whose gradient is zero but for rounding; PEFT cannot read
rank-overlap back itself (it sorts the patterns); Transformers 5 calls the head of GPT-NeoX lm_head, nibble by its file's name. An
element whose first gradient is rounding (1e-7, the largest 0.4: one of 512 in one of eight draws of pissa with r 8, alpha 16) goes lr
up or down in AdamW's first step, which is 2% of its tensor's change; PEFT in f64 leaves PEFT in f32 by as much at that element.
"""
import json, os, random, shutil, sys, zlib
from pathlib import Path
import numpy as np, torch, transformers
from peft import LoraConfig, PeftModel, get_peft_model, get_peft_model_state_dict
from peft.optimizers import create_loraplus_optimizer
from safetensors import safe_open
from safetensors.torch import save_file

import lora_golden

torch.set_num_threads(1)
STEPS, ROWS, LENGTH = 8, 2, 32
SMALL = dict(vocab_size=97, hidden_size=32, intermediate_size=56, num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64,
             pad_token_id=None, bos_token_id=1, eos_token_id=2)
CONFIGS = {
    "untied": lambda: transformers.LlamaConfig(**SMALL, num_hidden_layers=12, tie_word_embeddings=False),
    "tied": lambda: transformers.LlamaConfig(**SMALL, num_hidden_layers=12, tie_word_embeddings=True),
    "gpt2": lambda: transformers.GPT2Config(vocab_size=97, n_embd=32, n_layer=3, n_head=4, n_positions=64, bos_token_id=1, eos_token_id=2,
                                            attn_pdrop=0, resid_pdrop=0, embd_pdrop=0),
    "gemma2": lambda: transformers.Gemma2Config(**SMALL, num_hidden_layers=3, head_dim=8, sliding_window=16, attn_implementation="eager"),
    "qwen2": lambda: transformers.Qwen2Config(**SMALL, num_hidden_layers=3, tie_word_embeddings=False),
    "neox": lambda: transformers.GPTNeoXConfig(vocab_size=97, hidden_size=32, intermediate_size=64, num_hidden_layers=3, num_attention_heads=4,
                                               max_position_embeddings=64, bos_token_id=1, eos_token_id=2, attention_dropout=0, hidden_dropout=0),
    "qwen2-tied": lambda: transformers.Qwen2Config(**SMALL, num_hidden_layers=3, tie_word_embeddings=True),
    "qwen3": lambda: transformers.Qwen3Config(**SMALL, num_hidden_layers=3, head_dim=12, attention_bias=True, tie_word_embeddings=False),
    "qwen3-tied": lambda: transformers.Qwen3Config(**SMALL, num_hidden_layers=3, head_dim=8, tie_word_embeddings=True),
    "phi3": lambda: transformers.Phi3Config(**SMALL, num_hidden_layers=3),
    "padded": lambda: transformers.LlamaConfig(**{**SMALL, "pad_token_id": 5}, num_hidden_layers=1, tie_word_embeddings=True),
    "opt": lambda: transformers.OPTConfig(vocab_size=97, hidden_size=32, ffn_dim=56, num_hidden_layers=3, num_attention_heads=4, max_position_embeddings=64,
                                          dropout=0, word_embed_proj_dim=32, pad_token_id=1, bos_token_id=1, eos_token_id=2),
}
# modules of the layers; the embedding; the last norm
MODULES = {"gpt2": (["c_attn", "c_proj", "c_fc"], "wte", "ln_f"), "neox": (["query_key_value", "dense", "dense_h_to_4h", "dense_4h_to_h"], "embed_in", "final_layer_norm"),
           "phi3": (["qkv_proj", "o_proj", "gate_up_proj", "down_proj"], "embed_tokens", "norm"),
           "opt": (["q_proj", "k_proj", "v_proj", "out_proj", "fc1", "fc2"], "embed_tokens", "final_layer_norm")}
LLAMA_MODULES = (["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"], "embed_tokens", "norm")
QV = ["q_proj", "v_proj"]
OF_GPT2 = dict(target_modules=["c_attn"], fan_in_fan_out=True)
# name: (base, options[, {"scratch": trained from nibble's own start, "quantize": 4-bit type}])
CASES = {
    "embed-tied": ("tied", dict(target_modules=["q_proj", "embed_tokens"])),
    "embed-untied-head": ("untied", dict(target_modules=["q_proj", "embed_tokens", "lm_head"])),
    "embed-gemma2": ("gemma2", dict(r=3, lora_alpha=7, target_modules=["embed_tokens", "down_proj"])),
    "embed-dora-tied": ("tied", dict(use_dora=True, target_modules=["v_proj", "embed_tokens"])),
    "padding-embed": ("padded", dict(target_modules=["embed_tokens"])),
    "padding-dora": ("padded", dict(use_dora=True, target_modules=["embed_tokens"])),
    "padding-tokens": ("padded", dict(target_modules=["q_proj"], trainable_token_indices=[5, 90])),
    "padding-saved": ("padded", dict(target_modules=["q_proj"], modules_to_save=["embed_tokens"])),
    "embed-gpt2": ("gpt2", dict(target_modules=["wte", "wpe", "c_attn"], fan_in_fan_out=True)),
    "head-tied": ("tied", dict(target_modules=["q_proj", "lm_head"])),
    "tokens-tied": ("tied", dict(target_modules=QV, trainable_token_indices=[5, 90, 3, 17])),
    "tokens-untied": ("untied", dict(target_modules=QV, trainable_token_indices={"embed_tokens": [7, 11, 2], "lm_head": [9, 4]})),
    "tokens-dict-tied": ("tied", dict(target_modules=QV, trainable_token_indices={"embed_tokens": [7, 11, 2], "lm_head": [7, 11, 2]})),
    "tokens-gpt2": ("gpt2", dict(**OF_GPT2, trainable_token_indices=[7, 11, 2])),
    "tokens-gemma2": ("gemma2", dict(target_modules=["q_proj"], trainable_token_indices=[7, 11, 2])),
    "tokens-4bit": ("stories", dict(target_modules="all-linear", trainable_token_indices=[5, 90, 3, 17]), {"quantize": "nf4"}),
    "pissa": ("stories", dict(target_modules=QV + ["down_proj"], init_lora_weights="pissa"), {"scratch": True}),
    "pissa-rslora-gpt2": ("gpt2", dict(use_rslora=True, target_modules=["c_attn", "c_proj"], fan_in_fan_out=True, init_lora_weights="pissa"), {"scratch": True}),
    "pissa-dora": ("untied", dict(use_dora=True, target_modules=QV, init_lora_weights="pissa"), {"scratch": True}),
    "olora": ("untied", dict(target_modules=["q_proj", "k_proj", "down_proj", "up_proj"], init_lora_weights="olora"), {"scratch": True}),
    "loftq": ("stories", dict(target_modules=QV + ["down_proj"], init_lora_weights="loftq"), {"scratch": True, "quantize": "nf4"}),
    "lora-bias": ("qwen2", dict(target_modules=QV, lora_bias=True)),
    "bias-all": ("qwen2", dict(target_modules=QV, bias="all")),
    "bias-all-gpt2": ("gpt2", dict(**OF_GPT2, bias="all")),
    "bias-lora-gpt2": ("gpt2", dict(target_modules=["c_attn", "c_fc"], fan_in_fan_out=True, bias="lora_only", lora_bias=True)),
    "dora-gpt2": ("gpt2", dict(use_dora=True, target_modules=["c_attn", "c_proj"], fan_in_fan_out=True)),
    "dora-4bit": ("stories", dict(use_dora=True, target_modules=QV), {"quantize": "nf4"}),
    "dora-rslora-pattern": ("untied", dict(use_dora=True, use_rslora=True, target_modules="all-linear", alpha_pattern={r"layers\.\d+\.mlp\..*": 9},
                                           rank_pattern={"layers.1.self_attn.q_proj": 2, "q_proj": 3, "mlp.*": 5})),
    "rank-overlap": ("untied", dict(target_modules=["q_proj", "k_proj"], alpha_pattern={"k_proj": 1, "layers.2.self_attn.k_proj": 33},
                                    rank_pattern={"1.self_attn.q_proj": 2, "a.*": 6, "q_proj": 3, "^model.layers.3.*": 7})),
    "exclude-list": ("untied", dict(target_modules="all-linear", exclude_modules=["k_proj", "1.self_attn.q_proj"])),
    "exclude-regex": ("untied", dict(target_modules=QV + ["up_proj"], exclude_modules=r".*layers\.(1|11)\..*")),
    "target-regex": ("untied", dict(target_modules=r".*\.(2|3|11)\..*(q|v)_proj")),
    "suffix": ("untied", dict(target_modules=["1.self_attn.q_proj", "model.layers.2.mlp.up_proj", "layers.3.mlp.down_proj"])),
    "layers-pattern": ("untied", dict(target_modules=QV, layers_to_transform=[1, 11], layers_pattern="layers")),
    "layers-one": ("untied", dict(target_modules=QV, layers_to_transform=3)),
    "layers-pattern-gpt2": ("gpt2", dict(**OF_GPT2, layers_to_transform=[0, 2], layers_pattern=["h", "foo"])),
    "save-norm": ("untied", dict(target_modules=QV, modules_to_save=["norm"])),
    "save-mlp": ("untied", dict(target_modules=QV + ["up_proj"], modules_to_save=["3.mlp"])),
    "save-embed-tied": ("tied", dict(target_modules=QV, modules_to_save=["embed_tokens"])),
    "save-both-tied": ("tied", dict(target_modules=QV, modules_to_save=["embed_tokens", "lm_head"])),
    "save-head-neox": ("neox", dict(target_modules=["query_key_value"], modules_to_save=["embed_out"])),
    "save-head-4bit": ("stories", dict(target_modules=QV, modules_to_save=["lm_head"]), {"quantize": "nf4"}),
    "gpt2-save-head": ("gpt2", dict(**OF_GPT2, modules_to_save=["lm_head", "ln_f"])),
    "gpt2-no-fan-flag": ("gpt2", dict(target_modules=["c_attn", "c_proj"])),
    "defaults-neox": ("neox", dict()),
    "lora-default-targets": ("stories", dict()),
    "all-linear-rslora": ("stories", dict(use_rslora=True, target_modules="all-linear")),
    "layers-to-transform": ("stories", dict(target_modules=QV, layers_to_transform=[0, 3])),
    "rank-and-alpha-pattern": ("stories", dict(target_modules=["q_proj", "k_proj", "down_proj"], rank_pattern={"q_proj": 2, "layers.1.mlp.down_proj": 6},
                                               alpha_pattern={"k_proj": 3, "layers.4.self_attn.q_proj": 16})),
    "modules-to-save": ("stories", dict(target_modules=QV, modules_to_save=["lm_head"])),
    "bias-lora_only": ("qwen2", dict(target_modules=["q_proj", "v_proj", "o_proj"], bias="lora_only")),
    "dora": ("stories", dict(use_dora=True, target_modules=QV + ["down_proj"])),
    "qlora-nf4-dq": ("stories-nf4-dq", dict(target_modules="all-linear")),
}
COMMITTED = ["lora-default-targets", "all-linear-rslora", "layers-to-transform", "rank-and-alpha-pattern", "modules-to-save", "bias-lora_only",
             "dora", "qlora-nf4-dq", "padding-embed", "padding-dora", "padding-tokens"]
# case: which tensors are kept. Together they have an A, a B, a bias, and A, B and DoRA's magnitude of an embedding.
LORAPLUS = {"bias-lora_only": "layers.1.self_attn.v_proj", "padding-dora": ""}
DATA = Path(__file__).resolve().parents[1] / "data"


def random_case(seed):
    """Options drawn together as people combine them, on a random base."""
    r = random.Random(f"options-{seed}")
    base = r.choice(["untied", "tied", "qwen2", "qwen2-tied", "qwen3", "qwen3-tied", "gemma2", "gpt2", "neox", "phi3", "opt"])
    linears, embedding, norm = MODULES.get(base, LLAMA_MODULES)
    names = r.sample(linears, r.randint(1, len(linears)))
    options = dict(r=r.choice([1, 3, 4, 8]), lora_alpha=r.choice([1, 5, 8, 16.5]), use_rslora=r.random() < 0.3)
    options["target_modules"] = r.choice([names, names, "all-linear", r".*\.[02]\..*(" + "|".join(names) + ")"])
    if base == "gpt2":
        options["fan_in_fan_out"] = True
    as_list = isinstance(options["target_modules"], list)
    if as_list and r.random() < 0.25:
        options["layers_to_transform"] = r.choice([1, [0, 2]])
    if r.random() < 0.25:
        options["exclude_modules"] = r.choice([r.sample(linears, 1) + ["1." + linears[0]], r".*\.1\..*"])
    if r.random() < 0.4:
        options["rank_pattern"] = r.choice([{linears[0]: 2}, {r".*\.1\..*" + linears[-1]: 6, linears[0]: 5}])
    if r.random() < 0.4:
        options["alpha_pattern"] = r.choice([{linears[-1]: 3}, {r".*\.0\..*": 11}])
    kind = r.random()
    if kind < 0.3:
        options["use_dora"] = True
    elif kind < 0.45 and base.startswith("qwen2"):  # where there is a bias to merge into, not that of keys
        options.update(lora_bias=True, target_modules=["q_proj", "v_proj"])
    if r.random() < 0.2 and base not in ("gpt2", "opt", "neox"):  # the bias of their keys has a gradient that is zero but for rounding
        options["bias"] = r.choice(["all", "lora_only"])
    extra = r.random()
    if extra < 0.15:
        options["modules_to_save"] = [r.choice([norm, "lm_head" if base != "neox" else embedding, embedding])]
    elif extra < 0.3:
        options["trainable_token_indices"] = r.sample(range(3, 90), r.randint(1, 5))
    elif extra < 0.4 and as_list and base != "opt":
        options["target_modules"] = names + [embedding]
    return base, options


def base_directory(name, out):
    if name.startswith("stories"):
        return DATA / name.replace("stories", "stories-llama")
    path = out / "bases" / name
    if not (path / "config.json").exists():
        torch.manual_seed(7)
        model = transformers.AutoModelForCausalLM.from_config(CONFIGS[name](), dtype=torch.float32)
        for parameter in model.parameters():
            parameter.data.normal_(0, 0.08) if parameter.ndim > 1 else parameter.data.add_(torch.randn_like(parameter) * 0.1)
        model.save_pretrained(path)
    return path


def load(base, quantize=None):
    if (base / "config.json").read_text().find("quantization_config") > 0:
        return lora_golden.dequantized(base)
    model = transformers.AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    if quantize:
        from bitsandbytes import functional
        for module in model.modules():
            if isinstance(module, torch.nn.Linear) and module is not model.get_output_embeddings():
                packed = functional.quantize_4bit(module.weight.data, blocksize=64, compress_statistics=False, quant_type=quantize)
                module.weight.data = functional.dequantize_4bit(*packed)
    return model


def start_as_loftq(model, original):
    """PEFT's own start needs CUDA; this is its arithmetic with one iteration."""
    for name, module in model.named_modules():
        if getattr(module, "lora_A", None):
            lost = original.get_submodule(name.removeprefix("base_model.model.")).weight.data - module.base_layer.weight.data
            u, s, v = torch.linalg.svd(lost, full_matrices=False)
            r, root = module.r["default"], s[: module.r["default"]].sqrt()
            module.lora_A["default"].weight.data, module.lora_B["default"].weight.data = root[:, None] * v[:r], u[:, :r] * root


def make(name, out):
    base_name, given, *more = random_case(name) if name.startswith("random-") else CASES[name]
    options, how = {"r": 4, "lora_alpha": 8, **given}, more[0] if more else {}
    base, case = base_directory(base_name, out), out / name
    shutil.rmtree(case, ignore_errors=True)
    case.mkdir(parents=True)
    torch.manual_seed(zlib.crc32(name.encode()))
    random = np.random.default_rng(zlib.crc32(name.encode()))
    loftq = options.get("init_lora_weights") == "loftq"
    model = get_peft_model(load(base, how.get("quantize")), LoraConfig(task_type="CAUSAL_LM", **{**options, **({"init_lora_weights": True} if loftq else {})}))
    if loftq:
        start_as_loftq(model, load(base))
    trivial = ("lora_B", "lora_embedding_A", "magnitude", "trainable_tokens", "modules_to_save")
    for parameter_name, parameter in model.named_parameters():
        if not how.get("scratch") and parameter.requires_grad and (parameter_name.endswith(".bias") or any(t in parameter_name for t in trivial)):
            parameter.data.add_(torch.randn_like(parameter) * 0.05)
    model.peft_config["default"].base_model_name_or_path = base.name
    kept = False if base_name == "padded" else "auto"  # the frozen table, which PEFT saves beside its adapter
    model.save_pretrained(case / "init", save_embedding_layers=kept)
    vocabulary = model.config.vocab_size
    ids = random.integers(3, vocabulary, size=(STEPS * ROWS, LENGTH))
    labels = np.where(random.random(ids.shape) < 0.7, ids, -100)
    (case / "data.jsonl").write_text("".join(json.dumps({"input_ids": i.tolist(), "labels": l.tolist()}) + "\n" for i, l in zip(ids, labels)))
    probe = random.integers(3, vocabulary, size=(1, 16)).astype(np.int64)
    np.save(case / "ids.npy", probe)

    def save_logits(file):
        with torch.no_grad():
            np.save(case / file, model(torch.from_numpy(probe)).logits.numpy())

    save_logits("logits_before.npy")
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer, losses = torch.optim.AdamW(trained, lr=5e-3, weight_decay=0.01), []
    for step in range(STEPS):
        rows = slice(ROWS * step, ROWS * step + ROWS)
        logits = model(torch.from_numpy(ids[rows])).logits[:, :-1]
        loss = torch.nn.functional.cross_entropy(logits.reshape(-1, vocabulary), torch.from_numpy(labels[rows])[:, 1:].reshape(-1), ignore_index=-100)
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        for parameter in trained:
            parameter.grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        optimizer.step()
    model.save_pretrained(case / "after8", save_embedding_layers=kept)
    save_logits("logits_after.npy")
    shutil.copy(case / "logits_after.npy", case / "logits_merged.npy")
    for adapter in ("init", "after8"):
        (case / adapter / "README.md").unlink(missing_ok=True)
    with safe_open(case / "after8/adapter_model.safetensors", "pt") as file:
        optional = [key for key in file.keys() if ".base_layer.weight" in key]
    adapter = {"type": "lora", **({} if how.get("scratch") else {"path": "init"}), **{k: v for k, v in options.items() if k != "fan_in_fan_out"}}
    section = {"path": os.path.relpath(base, case), "compute_dtype": "f32", **({"quantize": how["quantize"], "double_quant": False} if "quantize" in how else {})}
    tolerance = {"losses_rel": 1e-3, "adapter_change": 1e-2, "logits_abs": 1e-3, "trained_logits_abs": 5e-3}
    (case / "case.json").write_text(json.dumps({
        "name": name, "kind": "train", "lora_config": options, "losses": losses, "optional_keys": optional,
        "trainable_tensors": len(trained),
        "nibble": {"variants": [{"model": section, "tolerance": tolerance}], "adapter": adapter,
                   "data": {"train": "data.jsonl", "format": "tokens", "pack": False, "shuffle": False, "max_length": 64},
                   "train": {"steps": STEPS, "microbatch_size": ROWS, "accumulate": 1, "max_grad_norm": 0, "log_every": 1},
                   "optimizer": {"type": "adamw", "lr": 5e-3, "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.01, "schedule": "constant"}}}, indent=1))


def loraplus(name, out):
    record = json.loads((out / name / "case.json").read_text())
    base = out / name / record["nibble"]["variants"][0]["model"]["path"]
    model = PeftModel.from_pretrained(load(base), out / name / "init", is_trainable=True)
    optimizer = create_loraplus_optimizer(model, torch.optim.AdamW, lr=1e-3, loraplus_lr_ratio=8, loraplus_weight_decay=2.0)
    schedule = transformers.get_linear_schedule_with_warmup(optimizer, 0, 3)
    lines = [json.loads(line) for line in (out / name / "data.jsonl").read_text().splitlines()]
    losses = []
    for step in range(3):
        ids, labels = (torch.tensor([line[key] for line in lines[ROWS * step:ROWS * step + ROWS]]) for key in ("input_ids", "labels"))
        loss = torch.nn.functional.cross_entropy(model(ids).logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), ignore_index=-100)
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    kept = {key: value for key, value in get_peft_model_state_dict(model, save_embedding_layers=False).items() if LORAPLUS[name] in key}
    save_file({key: value.contiguous() for key, value in kept.items()}, out / name / "loraplus.safetensors", {"losses": json.dumps(losses)})


if __name__ == "__main__":
    out, names = Path(sys.argv[1]).resolve(), sys.argv[2:]
    if names == ["--loraplus"]:
        for name in LORAPLUS:
            loraplus(name, out)
        sys.exit()
    for name in COMMITTED if names == ["--committed"] else names or CASES:
        try:
            make(name, out)
            print("made", name, flush=True)
        except Exception as error:  # PEFT refuses some of the drawn sets
            shutil.rmtree(out / name, ignore_errors=True)
            print("not made", name, type(error).__name__, str(error)[:150], flush=True)
