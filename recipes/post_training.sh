#!/usr/bin/env bash
# After supervised tuning, on an example that makes itself: a model that learned sums from careless people becomes
# better at them by DPO, by a reward model and PPO, and by GRPO with a reward that checks the answer.
#   bash recipes/post_training.sh [DIRECTORY]      (default: build/post_training; everything it makes goes there)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
work=${1:-build/post_training}
nibble=${NIBBLE:-build/release/bin/nibble}
recipes=recipes/post_training

say() { printf '\n== %s\n' "$*"; }
number() { sed -n "s/.*\"$1\": *\([-0-9.e+]*\).*/\1/p"; }         # a number of a JSON object on one line

if [ -z "${NIBBLE:-}" ]; then
  say "building nibble"
  bash tests/packages.sh
  cmake --preset release >/dev/null
  cmake --build build/release --target nibble_cli
fi

say "making sums, four of five of which are off by one"
rm -rf "$work"
mkdir -p "$work"
awk -v out="$work" -f $recipes/sums.awk
head -n 3 "$work/corpus.txt"
$nibble tokenizer train --data "$work/corpus.txt" --vocab-size 272 --out "$work/tokenizer"

say "pretraining a small Llama on them, and tuning it to end its answers"
$nibble train $recipes/pretrain.json model.tokenizer="$work/tokenizer" data.train="$work/corpus.txt" \
  output.dir="$work/pretrain"
$nibble train $recipes/tune.json model.path="$work/pretrain/model" data.train="$work/questions.jsonl" \
  output.dir="$work/sft"
start=$work/sft/model

run() { # recipe, data, overrides
  local name=$1 data=$2
  shift 2
  $nibble train "$recipes/$name.json" model.path="$start" data.train="$work/$data.jsonl" output.dir="$work/$name" "$@"
}
say "DPO: right answers rather than wrong ones"
run dpo pairs
say "a reward model from the same pairs, and PPO with it"
run reward pairs
run ppo prompts objective.reward_model="$work/reward/adapter" objective.value_adapter="$work/reward/adapter"
say "GRPO: the reward is 1 where the answer is right"
run grpo prompts

say "asking for sums that none of these has seen"
row() { # name, arguments of eval
  local name=$1 result
  shift
  result=$($nibble eval --model "$start" "$@" --data "$work/heldout.jsonl" --exact-match --json)
  printf '| %-28s | %10.0f%% | %9.3f |\n' "$name" "$(awk "BEGIN {print 100 * $(number exact_match <<<"$result")}")" \
    "$(number loss <<<"$result")"
}
{
  printf '| %-28s | %-11s | %-9s |\n' model 'exact match' 'eval loss'
  echo '|---|---|---|'
  row 'supervised tuning'
  for name in dpo ppo grpo; do row "$name" --adapter "$work/$name/adapter"; done
} | tee "$work/table.md"

say "the reward while GRPO trained, every tenth step"
awk '{ match($0, /"step": *[0-9]+/); step = substr($0, RSTART, RLENGTH); match($0, /"reward": *[0-9.e-]+/)
       print step, substr($0, RSTART, RLENGTH) }' "$work/grpo/metrics.jsonl"
printf '\nDone in %d seconds. The table is in %s/table.md, a page about each run in %s/*/report.html.\n' \
  "$SECONDS" "$work" "$work"
