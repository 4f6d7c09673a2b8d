"""Small files of other libraries, to be read: tests/data/safetensors and tests/data/peft-configs.

    python small_files.py DATA

safetensors: files of the safetensors library with several element types; another-writer.safetensors,
an NF4 matrix as older programs wrote it (a state with other spaces and keys in another order). peft-configs: adapter_config.json as
PEFT saves it, and an adapter whose keys carry the adapter's name, as a state dict of the model has them.
"""
import json, os, shutil, sys
from pathlib import Path

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
import bitsandbytes.functional as F
import torch
from peft import LoraConfig
from safetensors.torch import save_file

CONFIGS = {
    "target-mlp": dict(r=10, lora_alpha=20, target_modules=["gate_proj", "up_proj", "down_proj"]),
    "default-targets": dict(r=32, lora_alpha=64, lora_dropout=0.05),
    "dora": dict(r=32, lora_alpha=64, use_dora=True),
}


def write_safetensors(out):
    save_file({"x": torch.arange(12, dtype=torch.float64).reshape(3, 4) / 7}, out / "tensor-2d-float64.safetensors")
    save_file({"x": torch.arange(5, dtype=torch.int32)}, out / "tensor-1d-int32.safetensors")
    save_file({"x": torch.arange(8).to(torch.float8_e4m3fn)}, out / "fp8.safetensors")
    packed, state = F.quantize_4bit(torch.randn(8, 8, generator=torch.Generator().manual_seed(3)), blocksize=64, quant_type="nf4")
    name = "model.layers.0.weight"
    text = json.dumps({"blocksize": 64, "shape": [8, 8], "dtype": "float32", "quant_type": "nf4"}, separators=(",", ":"))
    save_file({name: packed, name + ".absmax": state.absmax, name + ".quant_map": state.code,
               name + ".quant_state.bitsandbytes__nf4": torch.tensor(list(text.encode()), dtype=torch.uint8)},
              out / "another-writer.safetensors")


def write_configs(out):
    for name, options in CONFIGS.items():
        config = LoraConfig(task_type="CAUSAL_LM", **options)
        if isinstance(config.target_modules, set):
            config.target_modules = options["target_modules"]  # in the order that was given
        config.save_pretrained(out / name)
    named = out / "named-keys"
    LoraConfig(r=2, lora_alpha=8, target_modules=["proj"]).save_pretrained(named)
    save_file({"base_model.model.proj.lora_A.default.weight": torch.arange(10.).reshape(2, 5),
               "base_model.model.proj.lora_B.default.weight": torch.arange(6.).reshape(3, 2)}, named / "adapter_model.safetensors")


if __name__ == "__main__":
    for folder, write in [("safetensors", write_safetensors), ("peft-configs", write_configs)]:
        path = Path(sys.argv[1]) / folder
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir()
        write(path)
