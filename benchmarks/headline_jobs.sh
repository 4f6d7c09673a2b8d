#!/usr/bin/env bash
# Three jobs that do not fit one rank's memory budget, on four ranks of this machine: a Falcon-form QLoRA as a naive
# pipeline, a GPT-NeoX-form full fine-tune fully sharded, and a Llama-form continual pretraining as tensor x pipeline from
# and back to a Hugging Face directory. Each is also run on one rank without a budget, and its losses are compared.
#   benchmarks/headline_jobs.sh [NIBBLE [DIRECTORY [JOB...]]]        needs about 4 GB of disk, jq and Open MPI
set -euo pipefail
nibble=$(realpath "${1:-build/release/bin/nibble}")
work=${2:-$(mktemp -d)}
jobs=${*:3}
mkdir -p "$work"
cd "$work"

ids() {  # ids FILE ROWS LENGTH VOCABULARY: rows of tokens that a model can learn something from
  awk -v rows="$2" -v length_="$3" -v vocabulary="$4" 'BEGIN {
    for (i = 0; i < rows; i++) {
      line = ""
      for (t = 0; t < length_; t++) line = line (t ? "," : "") (3 + (7 * i + t * t) % (vocabulary - 3))
      printf "{\"input_ids\":[%s],\"labels\":[%s]}\n", line, line
    }
  }' > "$1"
}

recipe() {  # recipe NAME MODEL EXTRA: NAME.json
  jq -n --arg model "$2" --arg data "$PWD/$1.jsonl" --argjson extra "$3" '
    {model: {path: $model, compute_dtype: "f32"},
     data: {train: $data, format: "tokens", pack: false, max_length: 64},
     train: {steps: 3, accumulate: 4, microbatch_size: 1, seed: 1},
     optimizer: {lr: 0.0005}} * $extra' > "$1.json"
}

losses() { jq -s -c '[.[] | select(.split == "train") | .loss]' "$1/metrics.jsonl"; }

job() {  # job NAME BUDGET OVERRIDES...
  local name=$1 budget=$2
  shift 2
  echo "== $name: $*"
  "$nibble" train "$name.json" output.dir="$name-one" output.force=true output.resume=never 2> "$name-one.log"
  local code=0
  "$nibble" train "$name.json" output.dir="$name-refused" output.force=true output.resume=never \
    --max-memory "$budget" 2> "$name-refused.log" || code=$?
  echo "one rank, no budget:     peak $(jq -s -c '[.[].peak_memory_bytes // 0] | max / 1e6 | round' "$name-one/metrics.jsonl") MB"
  echo "one rank, $budget:  exit code $code: $(grep -m1 '^error' "$name-refused.log")"
  "$nibble" launch -n 4 --threads 1 --max-memory "$budget" -- train "$name.json" output.dir="$name-four" \
    output.force=true output.resume=never "$@" 2> "$name-four.log"
  echo "four ranks, $budget: peaks $(jq -s -c '[.[] | .rank_peak_memory_bytes // empty] | last | map(. / 1e6 | round)' \
    "$name-four/metrics.jsonl") MB"
  echo "losses of one rank:      $(losses "$name-one")"
  echo "losses of four ranks:    $(losses "$name-four")"
  jq -n -e --argjson one "$(losses "$name-one")" --argjson four "$(losses "$name-four")" \
    --argjson budget "$(numfmt --from=iec-i --suffix=B "$budget" | tr -d B)" \
    --argjson peaks "$(jq -s -c '[.[] | .rank_peak_memory_bytes // empty] | last' "$name-four/metrics.jsonl")" '
    ([range($one | length) | ($one[.] - $four[.]) | if . < 0 then -. else . end] | max < 0.0002)
    and ($peaks | max < $budget) and ($one | length == 3)' > /dev/null ||
    { echo "FAILED: losses differ, or a rank is above its budget"; exit 1; }
  [ "$code" -eq 4 ] || { echo "FAILED: one rank was not refused"; exit 1; }
}

model() {  # model NAME DTYPE CONFIG
  [ -d "$1-model" ] && return
  echo "$3" > "$1-config.json"
  "$nibble" init --config "$1-config.json" --out "$1-model" --dtype "$2"
}

wanted() { [[ " ${jobs:-falcon neox llama} " == *" $1 "* ]]; }

falcon() {
  model falcon bf16 '{"architectures": ["FalconForCausalLM"], "model_type": "falcon", "hidden_size": 2048,
    "num_hidden_layers": 16, "num_attention_heads": 32, "multi_query": true, "parallel_attn": true, "bias": false,
    "new_decoder_architecture": false, "alibi": false, "layer_norm_epsilon": 1e-5, "vocab_size": 16384,
    "initializer_range": 0.02, "torch_dtype": "bfloat16"}'
  ids falcon.jsonl 12 64 16384
  recipe falcon "$PWD/falcon-model" '{"model": {"quantize": "nf4"}, "adapter": {"r": 8, "target_modules": "all-linear"}}'
  job falcon 400MiB parallel.pipeline=4 parallel.schedule=naive
}

neox() {
  model neox f32 '{"architectures": ["GPTNeoXForCausalLM"], "model_type": "gpt_neox", "hidden_size": 768,
    "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12, "vocab_size": 16384,
    "max_position_embeddings": 512, "rotary_pct": 0.25, "use_parallel_residual": true, "layer_norm_eps": 1e-5,
    "tie_word_embeddings": false, "torch_dtype": "float32"}'
  ids neox.jsonl 12 64 16384
  recipe neox "$PWD/neox-model" '{}'
  job neox 1000MiB parallel.shard=4
}

llama() {
  model llama f32 '{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 768,
    "intermediate_size": 2048, "num_hidden_layers": 12, "num_attention_heads": 12, "num_key_value_heads": 4,
    "vocab_size": 16384, "max_position_embeddings": 512, "rms_norm_eps": 1e-5, "tie_word_embeddings": false,
    "torch_dtype": "float32"}'
  ids llama.jsonl 12 64 16384
  recipe llama "$PWD/llama-model" '{}'
  job llama 800MiB parallel.tensor=2 parallel.pipeline=2 parallel.schedule=1f1b

  echo "== the trained Llama is a whole Hugging Face directory:"
  ls llama-four/model
  "$nibble" inspect llama-four/model | sed -n 1,3p
}

for one in falcon neox llama; do
  if wanted "$one"; then "$one"; fi
done
