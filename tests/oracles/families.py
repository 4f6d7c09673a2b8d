"""Logits, gradients, greedy ids and LoRA training of small random models, by Transformers and PEFT.

    python families.py OUT [--families llama,falcon] [--count N] [--seed S]     N cases of every family, each with other options
    python families.py tests/data/goldens/families --small [--count 2]          smaller ones without adapters: the committed

A case is a folder as tests/core/models/golden.h reads it: model/ (config.json as Transformers 5 saves it or in the words of
published files, weights in f32, f16 or bf16, in one or several files), input_ids.npy, labels.npy, logits.npy, grads.safetensors,
greedy.npy, lora/ with lora_logits.npy, lora_grads.safetensors, lora_greedy.npy and lora_after3.safetensors, case.json. The
numbers are those of the model that Transformers loads back from model/, in float32.
"""
import argparse, json, os, random, shutil, warnings
from pathlib import Path

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
warnings.filterwarnings("ignore")
import numpy as np
import peft, torch, transformers
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

import family_configs, published_configs

transformers.logging.set_verbosity_error()
torch.set_num_threads(1)
TOLERANCE = dict(logits=1e-4, loss=1e-4, gradients=1e-3, gradients_floor=1e-6, losses=1e-4, adapter=1e-2)
OPTIMIZER = dict(lr=1e-2, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01)
PROMPT, NEW, STEPS = 6, 24, 3
# of matrices: blocks on blocks multiply the roundings of f32, in Transformers too
GAIN = {"zamba2": 0.5}
# with --small: of families whose adapters tell something that those of others do not
SMALL_TARGETS = {"zamba2": ["q_proj", "gate_up_proj", "linear", "linear_v_adapter_list.0.1", "gate_up_proj_adapter_list.3.0"]}


def randomize(model, seed):
    """Every parameter far from its initial value, so that nothing can be left out unseen."""
    g = torch.Generator().manual_seed(seed)
    draw = lambda p: torch.randn(p.shape, generator=g)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if p.dim() == 1:
                p.copy_(draw(p) * 0.2 + float((p == 1).all()))  # weights of norms begin at 1, or at 0 where they are added to 1
            elif "embed" in name or "wte" in name or "wpe" in name:
                p.copy_(draw(p) * 0.35)
            else:
                p.copy_(draw(p) * GAIN.get(model.config.model_type, 1.3) / max(p.shape[-1], 1) ** 0.5)
        for name, b in model.named_buffers():  # biases that only choose experts, scales of layers
            if name in model.state_dict() and ("bias" in name or "scalar" in name):
                b.copy_(draw(b) * 0.2 + ("scalar" in name))


def attention_of(config):
    return "sdpa" if config.model_type == "falcon" and config.alibi else "eager"  # eager adds Falcon's alibi twice


def write_model(folder, kind, options, r, style, dtype, shards, seed):
    config = AutoConfig.for_model(kind, **options)
    model = AutoModelForCausalLM.from_config(config)
    randomize(model, seed)
    model.to(dtype).save_pretrained(folder, max_shard_size="12KB" if shards else "1GB")
    (folder / "generation_config.json").unlink(missing_ok=True)
    file = folder / "config.json"
    written = json.loads(file.read_text())
    if style == "published":
        file.write_text(json.dumps(published_configs.published(written, r), indent=1))
    config = AutoConfig.from_pretrained(folder)
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation=attention_of(config)).eval()


def saved_names(folder):
    names = set()
    for file in folder.glob("*.safetensors"):
        names |= set(load_file(file))
    return names


def make_texts(config, r, length):
    vocabulary = config.vocab_size
    ids = torch.tensor([[r.randrange(4, vocabulary) for _ in range(length)] for _ in range(2)])
    labels = ids.clone()
    labels[0, : length // 4] = -100
    labels[1, length // 2: length // 2 + 3] = -100
    return ids, labels


def loss_of(model, ids, labels):
    logits = model(input_ids=ids, use_cache=False).logits.float()
    return torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), ignore_index=-100), logits


@torch.no_grad()
def greedy(model, prompt, count):
    """Ids by running the whole text each time, and the smallest lead of a chosen one: none when generate() says others."""
    ids, lead = list(prompt), float("inf")
    for _ in range(count):
        top = model(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1].float().topk(2)
        lead = min(lead, float(top.values[0] - top.values[1]))
        ids.append(int(top.indices[0]))
    cached = model.generate(input_ids=torch.tensor([prompt]), max_new_tokens=count, do_sample=False, eos_token_id=None, pad_token_id=0)
    if cached[0].tolist() != ids:  # rope that follows the length: keys in a cache keep the angles that they were given
        lead = 0.0
    return ids[len(prompt):], lead


def measure(model, ids, labels, names_of, new):
    loss, logits = loss_of(model, ids, labels)
    loss.backward()
    # Zamba 2's layers hold adapters of each other, which they do not use
    grad = lambda p: torch.zeros_like(p) if p.grad is None else p.grad.detach().clone()
    grads = {names_of(n): grad(p) for n, p in model.named_parameters() if p.requires_grad}
    model.zero_grad()
    text, lead = greedy(model, ids[0, :PROMPT].tolist(), new)
    return float(loss.detach()), logits.detach(), grads, text, lead


def train(model, ids, labels):
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], **OPTIMIZER)
    losses = []
    for _ in range(STEPS):
        loss, _ = loss_of(model, ids, labels)
        losses.append(float(loss.detach()))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    losses.append(float(loss_of(model, ids, labels)[0].detach()))
    return losses


def all_linear(model):
    """But what PEFT refuses to adapt there."""
    if model.config.model_type not in ("falcon_h1", "nemotron_h"):
        return "all-linear"
    head = model.get_output_embeddings()
    names = {name.split(".")[-1] for name, m in model.named_modules() if isinstance(m, torch.nn.Linear) and m is not head}
    return sorted(names - {"out_proj"})


def adapt(model, seed, r=4, targets="all-linear"):
    lora = peft.LoraConfig(r=r, lora_alpha=8, lora_dropout=0.0, target_modules=targets, task_type="CAUSAL_LM")
    adapted = peft.get_peft_model(model, lora).eval()
    g = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in adapted.named_parameters():
            if "lora_B" in name:
                p.copy_(torch.randn(p.shape, generator=g) * 0.1)
    return adapted


def make_case(folder, name, family, seed, small=False):
    r = random.Random(f"{family}-{seed}")
    torch.manual_seed(r.randrange(1 << 30))
    kind, options = family_configs.FAMILIES[family](r)
    style, dtype = r.choice(["published", "transformers 5"]), r.choice([torch.float32, torch.float32, torch.float16, torch.bfloat16])
    shards = r.random() < 0.3
    if small:
        style, dtype, shards = ("published" if seed % 2 else "transformers 5"), torch.bfloat16, False
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    model = write_model(folder / "model", kind, options, r, style, dtype, shards, r.randrange(1 << 30))
    length = 12 if small else family_configs.LENGTH
    new = 8 if small else NEW
    stored = saved_names(folder / "model")
    # what Transformers calls otherwise than the file: GPT-NeoX's head, all of Nemotron-H
    names_of = lambda n: n if n in stored else {"lm_head.weight": "embed_out.weight"}.get(n, n.replace("model.", "backbone.", 1))
    ids, labels = make_texts(model.config, r, length)
    loss, logits, grads, text, lead = measure(model, ids, labels, names_of, new)
    np.save(folder / "input_ids.npy", ids.numpy())
    np.save(folder / "labels.npy", labels.numpy())
    np.save(folder / "logits.npy", logits.numpy())
    np.save(folder / "greedy.npy", np.array(text))
    save_file({k: v.contiguous() for k, v in grads.items()}, folder / "grads.safetensors")

    record = dict(name=name, family=family, seed=seed, style=style, stored=str(dtype), shards=shards, length=length, prompt_tokens=PROMPT,
                  label_tokens=int((labels[:, 1:] != -100).sum()), loss=loss, greedy_margin=lead, logits_rms=float(logits.pow(2).mean().sqrt()),
                  steps=STEPS, tolerance=TOLERANCE, optimizer=dict(type="adamw", lr=1e-2, betas=[0.9, 0.999], eps=1e-8, weight_decay=0.01,
                                                                   schedule="constant"),
                  versions=dict(transformers=transformers.__version__, peft=peft.__version__, torch=torch.__version__))
    if small and family in SMALL_TARGETS:
        adapted = adapt(model, r.randrange(1 << 30), 1, SMALL_TARGETS[family])
        adapted.peft_config["default"].base_model_name_or_path = "../model"
        adapted.save_pretrained(folder / "lora")
        (folder / "lora/README.md").unlink(missing_ok=True)
        record["lora_loss"], _, grads, _, _ = measure(adapted, ids, labels, lambda n: n.replace(".default", ""), new)
        save_file({k: v.contiguous() for k, v in grads.items()}, folder / "lora_grads.safetensors")
    if not small:
        adapted = adapt(model, r.randrange(1 << 30), targets=all_linear(model))
        adapted.save_pretrained(folder / "lora")
        (folder / "lora/README.md").unlink(missing_ok=True)
        plain = lambda n: n.replace(".default", "")
        record["lora_loss"], logits, grads, text, lora_lead = measure(adapted, ids, labels, plain, new)
        lead = min(lead, lora_lead)
        np.save(folder / "lora_logits.npy", logits.numpy())
        np.save(folder / "lora_greedy.npy", np.array(text))
        save_file({k: v.contiguous() for k, v in grads.items()}, folder / "lora_grads.safetensors")
        record["losses"] = train(adapted, ids, labels)
        after = peft.get_peft_model_state_dict(adapted)
        save_file({k: v.contiguous() for k, v in after.items()}, folder / "lora_after3.safetensors")
    (folder / "case.json").write_text(json.dumps(record, indent=1))
    return lead


def make_clear_case(folder, name, family, seed, small=False):
    """Another seed while a greedy choice is a tie but for rounding."""
    for attempt in range(20):
        if make_case(folder, name, family, seed + 100000 * attempt, small) > 1e-3:
            return
    raise SystemExit(f"{name}: no seed gives clear choices")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--families", default=",".join(family_configs.FAMILIES))
    parser.add_argument("--count", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--small", action="store_true")
    args = parser.parse_args()
    if args.small:
        family_configs.sizes = family_configs.SMALL
    for family in args.families.split(","):
        for seed in range(args.seed, args.seed + args.count):
            try:
                make_clear_case(args.out / f"{family}-{seed}", f"{family}-{seed}", family, seed, args.small)
            except Exception as error:
                shutil.rmtree(args.out / f"{family}-{seed}", ignore_errors=True)
                print(f"{family}-{seed}: {type(error).__name__}: {str(error)[:300]}", flush=True)


if __name__ == "__main__":
    main()
