#!/usr/bin/env bash
# After supervised tuning, on an example that makes itself: a small model that learned sums from careless people, who
# are often off by one, gets better at them by DPO, by a reward model and PPO, and by GRPO with a reward that checks the
# answer; this one twice, to the same bytes.
#   bash recipes/post_training.sh [DIRECTORY]      (default: build/post_training; everything it makes goes there)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
work=${1:-build/post_training}
nibble=${NIBBLE:-build/release/bin/nibble}
recipes=recipes/post_training

say() { printf '\n== %s\n' "$*"; }

if [ -z "${NIBBLE:-}" ]; then
  say "building nibble"
  bash tests/packages.sh
  cmake --preset release >/dev/null
  cmake --build build/release --target nibble_cli
fi

say "making sums, most of them off by one"
rm -rf "$work"
mkdir -p "$work"
awk -v out="$work" -f $recipes/sums.awk
sed -n 1,3p "$work/corpus.txt"
$nibble tokenizer train --data "$work/corpus.txt" --vocab-size 272 --out "$work/tokenizer"

say "pretraining a small Llama on them"
$nibble train $recipes/pretrain.json model.tokenizer="$work/tokenizer" data.train="$work/questions.jsonl" \
  output.dir="$work/pretrain"

base=$work/pretrain/model
run() { # recipe, data, output, overrides
  local recipe=$1 data=$2 out=$3
  shift 3
  $nibble train "$recipes/$recipe.json" model.path="$base" data.train="$work/$data.jsonl" output.dir="$work/$out" "$@"
}
say "DPO: the right answer rather than a wrong one"
run dpo pairs dpo
say "a reward model from the same pairs"
run reward pairs reward
say "PPO: answers that the reward model likes"
run ppo prompts ppo objective.reward_model="$work/reward/adapter" objective.value_adapter="$work/reward/adapter"
for out in grpo again; do
  say "GRPO: the reward is 1 where the answer is right ($out)"
  run grpo prompts "$out"
done
cmp "$work/grpo/adapter/adapter_model.safetensors" "$work/again/adapter/adapter_model.safetensors"

say "the reward while GRPO trained"
sed -nE 's/.*"step": *([0-9]+).*"reward": *([0-9.e-]+).*/step \1: \2/p' "$work/grpo/metrics.jsonl"

say "asking for sums that were in no pairs or prompts, and for pairs of their answers"
right() { # arguments of eval
  $nibble eval --model "$base" "$@" --data "$work/heldout.jsonl" --exact-match --json |
    sed -n 's/.*"exact_match": *\([0-9.]*\).*/\1/p'
}
row() { # name, arguments of eval
  local name=$1
  shift
  printf '| %s | %.0f%% |\n' "$name" "$(awk "BEGIN {print 100 * $(right "$@")}")"
}
ranked() { # name, command of nibble that gives both answers of a pair a number, its arguments
  local name=$1
  shift
  $nibble "$@" --model "$base" --data "$work/heldout_pairs.jsonl" --format preference --out "$work/ranked.jsonl" >/dev/null
  awk -F '[:,}]' -v name="$name" '{right += $2 > $4} END {printf "| %s | %.0f%% |\n", name, 100 * right / NR}' \
    "$work/ranked.jsonl"
}
{
  printf '| model | right |\n|---|---|\n'
  row before
  row 'after DPO' --adapter "$work/dpo/adapter"
  row 'after PPO with the reward model' --adapter "$work/ppo/adapter"
  row 'after GRPO' --adapter "$work/grpo/adapter"
  printf '\n| which of two answers is right, said by | rightly |\n|---|---|\n'
  ranked 'probabilities before' logprobs
  ranked 'the reward model' score --adapter "$work/reward/adapter"
} | tee "$work/table.md"
printf '\nDone in %d seconds. The table is in %s/table.md, a page about each run in %s/*/report.html.\n' \
  "$SECONDS" "$work" "$work"
