#!/usr/bin/env bash
# All tests, ROUNDS times each, beside two busy loops, with nice 19, and on one core; prints a table of what failed.
#   bash tests/steadiness.sh [ROUNDS] [ctest options, for instance -R faults/]      5 rounds; build/release must be built
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
rounds=${1:-5}
shift || true
logs=$(mktemp -d)
spinners=()
stop_spinners() { [ ${#spinners[@]} -eq 0 ] || kill "${spinners[@]}" 2>/dev/null || true; spinners=(); }
trap stop_spinners EXIT

printf '| %-20s | %5s | %6s | %6s | %7s | %s\n' condition round passed failed skipped 'minutes; what failed'
bad=0
for condition in 'two busy loops' 'nice 19' 'one core'; do
  for ((round = 1; round <= rounds; ++round)); do
    log=$logs/${condition// /-}-$round
    began=$SECONDS
    case $condition in
      'two busy loops')
        for _ in 1 2; do (while :; do :; done) & spinners+=($!); done
        ctest --preset release -j 1 "$@" >"$log" 2>&1 || true
        stop_spinners ;;
      'nice 19') nice -n 19 ctest --preset release -j 1 "$@" >"$log" 2>&1 || true ;;
      'one core') taskset -c 0 ctest --preset release -j 1 "$@" >"$log" 2>&1 || true ;;
    esac
    count() { grep -cE "^ *[0-9]+/[0-9]+ Test +#[0-9]+: .*$1" "$log" || true; }
    failed=$(grep -E '^ *[0-9]+/[0-9]+ Test +#[0-9]+: .*(\*\*\*Failed|\*\*\*Timeout|\*\*\*Exception|Subprocess)' "$log" |
      sed -E 's/.*#[0-9]+: ([^ ]+).*/\1/' || true)
    passed=$(count ' Passed ')
    printf '| %-20s | %5d | %6d | %6d | %7d | %d; %s\n' "$condition" "$round" "$passed" "$(wc -w <<<"$failed")" "$(count Skipped)" \
      $(((SECONDS - began) / 60)) "$(tr '\n' ' ' <<<"$failed")"
    [ -z "$failed" ] && [ "$passed" -gt 0 ] || bad=1
  done
done
echo "logs: $logs"
exit $bad
