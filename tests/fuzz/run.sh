#!/usr/bin/env bash
# Fuzzes the readers of files with libFuzzer (clang-14) from the committed seeds.
#   [MAX_LEN=512] bash tests/fuzz/run.sh [SECONDS [TARGET ...]]      default: 60 seconds each, all targets
# What is found lies in build/fuzz/found/TARGET-*; new inputs are kept in build/fuzz/corpus/TARGET and used the next time.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
seconds=${1:-60}
shift || true
command -v clang++-14 >/dev/null || { echo "error: clang++-14 is missing; install clang-14" >&2; exit 1; }
cmake --preset fuzz >/dev/null
cmake --build build/fuzz --target fuzzers
targets=("$@")
[ ${#targets[@]} -gt 0 ] || mapfile -t targets < <(ls tests/fuzz/seeds)
mkdir -p build/fuzz/found
failed=0
for target in "${targets[@]}"; do
  mkdir -p "build/fuzz/corpus/$target"
  log=build/fuzz/$target.log
  if ! build/fuzz/bin/"fuzz_$target" -max_total_time="$seconds" -timeout=30 -rss_limit_mb=4096 -max_len="${MAX_LEN:-512}" -print_final_stats=1 \
    -artifact_prefix="build/fuzz/found/$target-" "build/fuzz/corpus/$target" "tests/fuzz/seeds/$target" >"$log" 2>&1; then
    failed=1
    echo "$target: FAILED, see $log"
  fi
  count=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
  echo "$target ${count:-0} $(date -u +%F)" >>build/fuzz/tally
  total=$(awk -v target="$target" '$1 == target { sum += $2 } END { print sum }' build/fuzz/tally)
  echo "$target: ${count:-0} executions, $total since the corpus began"
done
exit $failed
