"""A user's job, from the start of the process to the saved adapter, with each tool's defaults: LoRA on the first EXAMPLES
problems of GSM8K in Alpaca form, one epoch, batches of 8, on the smollm2-135m shape.
  V/bin/pip install trl==1.16.0 datasets==5.2.0
  NIBBLE_TEST_ASSETS=DIR V/bin/python benchmarks/peers/trl_job.py build/release/bin/nibble MODEL [EXAMPLES]
MODEL: a 16-bit directory of that shape; a tokenizer of the assets is put beside its weights, that of TinyLlama where the vocabulary
has 32,000 tokens. Prints wall clock, the tokens of the data per second, peak memory and the ratio."""
import json
import os
import pathlib
import resource
import shutil
import subprocess
import sys
import tempfile
import time

ALPACA = ("Below is an instruction that describes a task. Write a response that appropriately completes the request.\n\n"
          "### Instruction:\n{}\n\n### Response:\n")

PEER = """
import sys
from datasets import load_dataset
from peft import LoraConfig
from trl import SFTConfig, SFTTrainer
model, data, out = sys.argv[1:]
SFTTrainer(model=model, args=SFTConfig(output_dir=out, num_train_epochs=1, report_to="none", save_strategy="no", use_cpu=True),
           train_dataset=load_dataset("json", data_files=data, split="train"),
           peft_config=LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM")).train()
"""


def put_model(folder, model):
    assets = pathlib.Path(os.environ["NIBBLE_TEST_ASSETS"])
    (folder / "model").mkdir()
    for file in pathlib.Path(model).iterdir():
        shutil.copy(file, folder / "model" / file.name)
    if json.loads((folder / "model/config.json").read_text(encoding="utf-8"))["vocab_size"] == 32000:
        for name in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(assets / "tok-tinyllama-hf" / f"tinyllama_{name}", folder / "model" / name)
        return
    tokenizer = json.loads((assets / "tok-smollm/tokenizer.json").read_text(encoding="utf-8"))
    tokenizer["added_tokens"] = [t for t in tokenizer["added_tokens"] if t["id"] < len(tokenizer["model"]["vocab"])]  # no [PAD]
    (folder / "model/tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")
    special = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|endoftext|>", "pad_token": "<|endoftext|>",
               "model_max_length": 4096}
    (folder / "model/tokenizer_config.json").write_text(json.dumps(special))


def prepare(folder, model, examples):
    put_model(folder, model)
    assets = pathlib.Path(os.environ["NIBBLE_TEST_ASSETS"])
    rows = [json.loads(line) for line in (assets / "data-gsm8k/train.jsonl").open(encoding="utf-8")]
    with (folder / "data.jsonl").open("w", encoding="utf-8") as out:
        for row in rows[:examples]:
            out.write(json.dumps({"prompt": ALPACA.format(row["question"]), "completion": row["answer"]}) + "\n")


def timed(command, **options):
    begin = time.perf_counter()
    run = subprocess.run(command, capture_output=True, text=True, **options)
    seconds = time.perf_counter() - begin
    if run.returncode != 0:
        sys.exit(run.stdout[-2000:] + run.stderr[-4000:])
    return seconds


def data_tokens(folder):
    from tokenizers import Tokenizer
    tokenizer = Tokenizer.from_file(str(folder / "model/tokenizer.json"))
    rows = [json.loads(line) for line in (folder / "data.jsonl").open(encoding="utf-8")]
    return sum(len(tokenizer.encode(row["prompt"] + row["completion"]).ids) for row in rows)


def main():
    program, model = sys.argv[1], sys.argv[2]
    examples = int(sys.argv[3]) if len(sys.argv) > 3 else 500
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        prepare(folder, model, examples)
        tokens = data_tokens(folder)
        recipe = {"model": {"path": str(folder / "model"), "compute_dtype": "bf16"},
                  "adapter": {"type": "lora", "r": 16, "lora_alpha": 32, "target_modules": "all-linear"},
                  "data": {"train": str(folder / "data.jsonl"), "max_length": 1024, "pack": False},  # 8 examples a step, as TRL
                  "train": {"epochs": 1, "microbatch_size": 8, "accumulate": 1}, "optimizer": {"lr": 2e-4},
                  "output": {"dir": str(folder / "ours")}}
        (folder / "recipe.json").write_text(json.dumps(recipe))
        ours = timed([program, "train", str(folder / "recipe.json")])
        our_memory = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
        assert (folder / "ours/adapter/adapter_model.safetensors").exists()
        theirs = timed([sys.executable, "-c", PEER, str(folder / "model"), str(folder / "data.jsonl"), str(folder / "theirs")],
                       env=os.environ | {"HF_HUB_OFFLINE": "1"})
        their_memory = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    print(f"{examples} examples, {tokens} tokens: nibble {ours:.1f} s, {tokens / ours:.0f} tok/s, {our_memory / 2**20:.2f} GiB; "
          f"TRL {theirs:.1f} s, {tokens / theirs:.0f} tok/s, {their_memory / 2**20:.2f} GiB; {theirs / ours:.2f}x")


if __name__ == "__main__":
    main()
