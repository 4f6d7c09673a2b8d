#!/usr/bin/env bash
# Reinforcement learning on an example that makes itself: a small model that learned sums from careless people, who are
# often off by one, gets them right by GRPO with a reward that checks the answer. Twice, to the same bytes.
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

for run in grpo again; do
  say "GRPO: the reward is 1 where the answer is right ($run)"
  $nibble train $recipes/grpo.json model.path="$work/pretrain/model" data.train="$work/prompts.jsonl" \
    output.dir="$work/$run"
done
cmp "$work/grpo/adapter/adapter_model.safetensors" "$work/again/adapter/adapter_model.safetensors"

say "the reward while it trained"
sed -nE 's/.*"step": *([0-9]+).*"reward": *([0-9.e-]+).*/step \1: \2/p' "$work/grpo/metrics.jsonl"

say "asking for sums that were not among the prompts"
right() { # arguments of eval
  $nibble eval --model "$work/pretrain/model" "$@" --data "$work/heldout.jsonl" --exact-match --json |
    sed -n 's/.*"exact_match": *\([0-9.]*\).*/\1/p'
}
{
  printf '| model | right |\n|---|---|\n'
  printf '| pretrained | %.0f%% |\n' "$(awk "BEGIN {print 100 * $(right)}")"
  printf '| after GRPO | %.0f%% |\n' "$(awk "BEGIN {print 100 * $(right --adapter "$work/grpo/adapter")}")"
} | tee "$work/table.md"
printf '\nDone in %d seconds. The table is in %s/table.md, a page about each run in %s/*/report.html.\n' \
  "$SECONDS" "$work" "$work"
