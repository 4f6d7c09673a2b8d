#!/usr/bin/env bash
# Whether QLoRA in 8 bits learns what it learns in floats, on a model that knows the words: 12 million weights,
# pretrained on texts and half of GSM8K's training problems, in NF4, tuned on others; losses on GSM8K's test problems.
#   NIBBLE_TEST_ASSETS=DIR bash benchmarks/int8_gsm8k.sh [DIRECTORY]      (default: build/int8-gsm8k)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
work=${1:-build/int8-gsm8k}
nibble=build/release/bin/nibble
assets=$NIBBLE_TEST_ASSETS

rm -rf "$work"
mkdir -p "$work"
python3 - "$assets" "$work" <<'END'
import json, pathlib, sys
assets, work = map(pathlib.Path, sys.argv[1:])
rows = [json.loads(line) for line in (assets / "data-gsm8k/train.jsonl").open(encoding="utf-8")]
tests = [json.loads(line) for line in (assets / "data-gsm8k/test.jsonl").open(encoding="utf-8")]
half = len(rows) // 2
texts = [text for name in ("data-wikitext2/valid.txt", "data-tinyshakespeare/input.txt") for text in
         (assets / name).read_text(encoding="utf-8").split("\n\n")]
texts += [f"{row['question']}\n{row['answer']}" for row in rows[:half]]


def write(name, records):
    (work / name).write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")


write("texts.jsonl", [{"text": text.strip()} for text in texts if text.strip()])
for name, part in ("train", rows[half:half + 2400]), ("test", tests[:400]):
    write(f"{name}.jsonl", [{"prompt": row["question"] + "\n", "completion": row["answer"]} for row in part])
(work / "texts.txt").write_text("\n".join(texts), encoding="utf-8")
(work / "config.json").write_text(json.dumps({
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 384, "intermediate_size": 1024,
    "num_hidden_layers": 6, "num_attention_heads": 6, "num_key_value_heads": 3, "hidden_act": "silu",
    "max_position_embeddings": 1024, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "initializer_range": 0.04,
    "tie_word_embeddings": True, "vocab_size": 4096, "bos_token_id": 1, "eos_token_id": 2, "torch_dtype": "bfloat16"}))
(work / "pretrain.json").write_text(json.dumps({
    "model": {"init": str(work / "config.json"), "tokenizer": str(work / "tokenizer")},
    "data": {"train": str(work / "texts.jsonl"), "format": "text", "max_length": 512},
    "train": {"steps": 500, "microbatch_size": 8, "log_every": 50},
    "optimizer": {"lr": 2e-3, "betas": [0.9, 0.95], "weight_decay": 0.1, "warmup_steps": 50, "min_lr": 1e-4},
    "output": {"dir": str(work / "pretrain")}}))
(work / "gsm8k.json").write_text(json.dumps({
    "model": {"path": str(work / "base")}, "adapter": {"r": 16, "lora_alpha": 32},
    "data": {"train": str(work / "train.jsonl"), "eval": str(work / "test.jsonl"), "format": "completion",
             "max_length": 640},
    "train": {"epochs": 2, "microbatch_size": 8, "eval_every": 1000}, "optimizer": {"lr": 1e-3, "warmup_steps": 10},
    "output": {"dir": str(work / "out")}}))
END
$nibble tokenizer train --data "$work/texts.txt" --vocab-size 4096 --out "$work/tokenizer"
$nibble train "$work/pretrain.json"
$nibble quantize --model "$work/pretrain/model" --out "$work/base"
python3 benchmarks/int8_losses.py job $nibble "$work/gsm8k.json"
