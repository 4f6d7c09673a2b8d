"""One row of train_step in PyTorch + Transformers + PEFT (+ bitsandbytes), on the model directory that train_step made:
  python3 train_step.py MODELS shape=tinyllama-1.1b mode=qlora tokens=2048 [checkpointing=1] [prepared=1] [autocast=0] [dtype=f32] [steps=4]
Prints JSON: seconds of each step after the first, peak resident memory in bytes (VmHWM). See compare.py for both in turn."""
import json
import os
import sys
import time

import torch
from transformers import AutoModelForCausalLM


def peak_memory():
    return next(int(line.split()[1]) << 10 for line in open("/proc/self/status") if line.startswith("VmHWM"))


def make_model(models, shape, mode, checkpointing, prepared, floats):
    directory = os.path.join(models, f"{shape}-{'nf4' if mode == 'qlora' else 'bf16'}")
    dtype = torch.float32 if mode == "full" or floats else torch.bfloat16
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=dtype, attn_implementation="sdpa")
    for module in model.modules():
        if floats and hasattr(module, "compute_dtype"):  # 4-bit
            module.compute_dtype = torch.float32
    for parameter in model.parameters():  # beside 4-bit weights the others are as they are stored
        if floats and parameter.is_floating_point():
            parameter.data = parameter.data.float()
    model.config.use_cache = False
    model.train()
    if mode == "full":
        if checkpointing:
            model.gradient_checkpointing_enable()
        return model
    from peft import LoraConfig, get_peft_model, prepare_model_for_kbit_training

    if mode == "qlora" and (checkpointing or prepared):  # as PEFT's page on quantization says
        model = prepare_model_for_kbit_training(model, use_gradient_checkpointing=checkpointing)
    elif checkpointing:
        model.gradient_checkpointing_enable()
        model.enable_input_require_grads()
    return get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", lora_alpha=32, r=16, **targets(model)))


def targets(model):
    """As train_step adapts: every Linear; of a mixture attention, and experts with r = 4 and alpha = 8."""
    experts = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]
    if not any(name.endswith(experts[0]) for name, _ in model.named_parameters()):
        return {"target_modules": "all-linear"}
    return {"target_modules": ["q_proj", "k_proj", "v_proj", "o_proj"], "target_parameters": experts,
            "rank_pattern": {name: 4 for name in experts}, "alpha_pattern": {name: 8 for name in experts}}


def main():
    models = sys.argv[1]
    job = dict(argument.split("=", 1) for argument in sys.argv[2:])
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    torch.manual_seed(0)
    checkpointing, prepared = (job.get(key, "0") != "0" for key in ("checkpointing", "prepared"))
    floats = job.get("dtype") == "f32"
    model = make_model(models, job["shape"], job["mode"], checkpointing, prepared, floats)
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=1e-4)
    ids = torch.randint(0, model.config.vocab_size, (1, int(job["tokens"])))
    times = []
    for step in range(int(job.get("steps", 4)) + 1):
        begin = time.perf_counter()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=not floats and job.get("autocast", "1") != "0"):
            loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        times.append(time.perf_counter() - begin)
        print(f"step {step + 1}: loss {loss.item():.4f}, {times[-1]:.3f} s", file=sys.stderr, flush=True)
    print(json.dumps({"seconds": times[1:], "memory": peak_memory()}))


main()
