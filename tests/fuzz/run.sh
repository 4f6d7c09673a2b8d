#!/usr/bin/env bash
# Fuzzes the readers of files with libFuzzer (clang-14), from the committed seeds and from what earlier runs kept.
#   bash tests/fuzz/run.sh [SECONDS [TARGET ...]]      default: 60 seconds each, all targets
# KIND=asan (default): with the address, leak and undefined-behaviour sanitizers. KIND=quick: undefined behaviour and
# the standard library's assertions trap, nothing else is watched, 10 times as many executions a second.
# KIND=blind, KIND=release: no coverage; RUNS (1000000) blindly changed seeds and inputs of the corpus a round instead of
# SECONDS, with the sanitizers of asan or in the library as it ships (build/release), where only leaks are watched (the
# leak sanitizer is put in front of malloc). Other rounds make other inputs.
# TOTAL=N: round after round until every target has had N executions of any kind. MAX_LEN=N: longest input (1024).
# build/fuzz holds found/TARGET-* (what failed), corpus/TARGET (inputs of both kinds) and tally (target, kind, count, day).
# Calls for different targets may run side by side.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
seconds=${1:-60}
shift || true
kind=${KIND:-asan}
case $kind in
  asan) preset=fuzz ;;
  quick) preset=fuzz-quick ;;
  blind) preset=fuzz program=reader_tests ;;
  release) preset=release program=test_fuzz ;;
  *) echo "error: KIND=$kind; it is asan, quick, blind or release" >&2; exit 2 ;;
esac
[ $kind = release ] || command -v clang++-14 >/dev/null || { echo "error: clang++-14 is missing; install clang-14 libclang-rt-14-dev libomp-14-dev" >&2; exit 1; }
cmake --preset $preset >/dev/null
cmake --build build/$preset --target "${program:-fuzzers}" -j "${JOBS:-$(nproc)}"
targets=("$@")
[ ${#targets[@]} -gt 0 ] || mapfile -t targets < <(ls tests/fuzz/seeds)
mkdir -p build/fuzz/found build/fuzz/log
touch build/fuzz/tally
failed=0

total() { awk -v target="$1" '$1 == target { sum += $3 } END { printf "%d", sum }' build/fuzz/tally; }

# The N-th blind round changes with seed N. A reader that never comes back ends with the limit on its processor time.
run_blindly() {
  local target=$1 log=$2 round before=
  [ $kind = blind ] || before=$(g++ -print-file-name=liblsan.so)
  round=$(awk -v target="$target" -v kind=$kind '$1 == target && $2 == kind' build/fuzz/tally | wc -l)
  (ulimit -t $((60 + ${RUNS:-1000000} / 500))
    NIBBLE_FUZZ_RUNS=${RUNS:-1000000} NIBBLE_FUZZ_SEED=$((round + 1)) NIBBLE_FUZZ_CORPUS=build/fuzz/corpus \
      LD_PRELOAD=$before build/$preset/bin/$program --gtest_filter="Fuzz*/$target") >"$log" 2>&1 &&
    echo "stat::number_of_executed_units: ${RUNS:-1000000}" >>"$log"
}

run_guided() {
  local target=$1 log=$2
  # Freed memory is kept apart for 16 MB, and two callers are noted of each allocation: more costs half of the speed.
  OMP_NUM_THREADS=1 ASAN_OPTIONS=quarantine_size_mb=16:malloc_context_size=2 \
    build/$preset/bin/"fuzz_$target" -max_total_time="$seconds" -timeout=60 -rss_limit_mb=2048 -reload=0 -entropic=0 \
    -max_len="${MAX_LEN:-1024}" -print_final_stats=1 -artifact_prefix="build/fuzz/found/$target-" \
    "build/fuzz/corpus/$target" "tests/fuzz/seeds/$target" >"$log" 2>&1
}

run() {
  local target=$1 log=build/fuzz/log/$1.$kind.log count
  mkdir -p "build/fuzz/corpus/$target"
  if ! "$([ -n "${program:-}" ] && echo run_blindly || echo run_guided)" "$target" "$log"; then
    failed=1
    cp "$log" build/fuzz/found
    echo "$target: FAILED, see build/fuzz/found/$target.$kind.log"
  fi
  count=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
  echo "$target $kind ${count:-0} $(date -u +%F)" >>build/fuzz/tally
  echo "$target: ${count:-0} executions ($kind), $(total "$target") since the corpus began"
}

if [ -z "${TOTAL:-}" ]; then
  for target in "${targets[@]}"; do run "$target"; done
  exit $failed
fi
while [ $failed = 0 ]; do
  left=0
  for target in "${targets[@]}"; do
    [ "$(total "$target")" -lt "$TOTAL" ] || continue
    left=1
    run "$target"
  done
  [ $left = 1 ] || break
done
exit $failed
