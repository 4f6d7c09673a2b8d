#!/usr/bin/env bash
# The main job on an example that makes itself: tokenizer, pretraining, 4-bit base, QLoRA against 16-bit LoRA, merge.
#   bash recipes/quickstart.sh [DIRECTORY]      (default: build/quickstart; everything it makes goes there)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
work=${1:-build/quickstart}
nibble=build/release/bin/nibble
recipes=recipes/quickstart

say() { printf '\n== %s\n' "$*"; }
number() { sed -n "s/.*\"$1\": *\([-0-9.e+]*\).*/\1/p"; }         # a number of a JSON object on one line
peak() { grep '"train"' "$1/metrics.jsonl" | tail -n 1 | number peak_memory_bytes; } # of a run, in bytes
size() { du -sb "$1" | cut -f 1; }

say "building nibble"
bash tests/packages.sh
cmake --preset release >/dev/null
cmake --build build/release --target nibble_cli

say "making the corpus"
rm -rf "$work"
mkdir -p "$work"
awk -v out="$work" -f $recipes/corpus.awk
head -n 1 "$work/stories.txt"
head -n 1 "$work/questions.jsonl"

say "training a tokenizer"
$nibble tokenizer train --data "$work/stories.txt" --vocab-size 640 --out "$work/tokenizer"

say "pretraining a small Llama on the stories"
$nibble train $recipes/pretrain.json model.tokenizer="$work/tokenizer" data.train="$work/stories.txt" \
  data.eval="$work/stories-heldout.txt" output.dir="$work/pretrain"
base=$work/pretrain/model

say "quantizing it to NF4 with double quantization"
$nibble quantize --model "$base" --out "$work/base-nf4"

tune() { # name, base
  local before=$SECONDS
  $nibble train $recipes/finetune.json model.path="$2" data.train="$work/questions.jsonl" \
    data.eval="$work/questions-heldout.jsonl" output.dir="$work/$1"
  seconds[$1]=$((SECONDS - before))
}
declare -A seconds
say "teaching the 4-bit base to answer questions, with five of six people (QLoRA)"
tune qlora "$work/base-nf4"
say "the same on the 16-bit base (LoRA)"
tune lora "$base"

say "merging the QLoRA adapter into its base"
$nibble merge --adapter "$work/qlora/adapter" --model "$work/base-nf4" --out "$work/merged"

say "measuring on questions about the other people"
measure() { $nibble eval "$@" --data "$work/questions-heldout.jsonl" --exact-match --json; }
row() { # name, base directory, seconds, peak bytes, result of measure
  printf '| %-26s | %9.3f | %10.0f%% | %8.2f MB | %7s | %8s |\n' "$1" "$(number loss <<<"$5")" \
    "$(awk "BEGIN {print 100 * $(number exact_match <<<"$5")}")" "$(awk "BEGIN {print $(size "$2") / 1e6}")" "$3" "$4"
}
mega() { awk "BEGIN {printf \"%.0f MB\", $1 / 1e6}"; }
{
  printf '| %-26s | %-9s | %-11s | %-11s | %-7s | %-8s |\n' model 'eval loss' 'exact match' 'base' seconds 'peak'
  echo '|---|---|---|---|---|---|'
  row 'base, 16 bits' "$base" - - "$(measure --model "$base")"
  row 'base, NF4' "$work/base-nf4" - - "$(measure --model "$work/base-nf4")"
  row 'LoRA on 16 bits' "$base" "${seconds[lora]}" "$(mega "$(peak "$work/lora")")" \
    "$(measure --model "$base" --adapter "$work/lora/adapter")"
  row 'QLoRA on NF4' "$work/base-nf4" "${seconds[qlora]}" "$(mega "$(peak "$work/qlora")")" \
    "$(measure --model "$work/base-nf4" --adapter "$work/qlora/adapter")"
  row 'merged QLoRA, 16 bits' "$work/merged" - - "$(measure --model "$work/merged")"
} | tee "$work/table.md"

say "asking the merged model one of these questions"
prompt=$(sed -n '1s/.*"prompt": "\([^"]*\)".*/\1/p' "$work/questions-heldout.jsonl")
$nibble generate --model "$work/merged" --max-new-tokens 24 --prompt "$prompt"
printf '\nDone in %d seconds. The table is in %s/table.md.\n' "$SECONDS" "$work"
