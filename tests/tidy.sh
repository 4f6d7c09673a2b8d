#!/usr/bin/env bash
# Runs the checks of .clang-tidy on the sources, those changed last first, for so many seconds.
#   bash tests/tidy.sh [SECONDS]        600 without a number
#   bash tests/tidy.sh all [FILE...]    every source, or those named
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
budget=${1:-600}
shift || true
command -v clang-tidy-14 >/dev/null || { echo "error: clang-tidy-14 is not installed" >&2; exit 2; }
for file in "$@"; do [ -f "$file" ] || { echo "error: $file: no such file" >&2; exit 2; }; done
cmake --preset release -B build/tidy -DNIBBLE_UNITY_BUILD=OFF >/dev/null # commands that name each source

mapfile -t files < <(
  if [ $# -gt 0 ]; then
    printf '%s\n' "$@"
  else # newest change first; a clone without history gives all of them at once
    git log --name-only --diff-filter=d --format= -- '*.cpp' | awk '!seen[$0]++' |
      grep -E '^(core|quant|adapters|parallel|recipes|cli)/' | while read -r file; do [ -f "$file" ] && echo "$file"; done
  fi)

[ "$budget" = all ] || end=$((SECONDS + budget))
looked=0
reports=$(mktemp -d)
trap 'rm -rf "$reports"' EXIT
# One report a source. gcc's own warning options are unknown to clang.
export reports
look() {
  clang-tidy-14 --quiet --extra-arg=-Wno-unknown-warning-option -p build/tidy "$1" >"$reports/${1//\//-}" 2>/dev/null || true
}
export -f look
while [ $looked -lt ${#files[@]} ] && { [ "$budget" = all ] || [ $SECONDS -lt "$end" ]; }; do
  batch=("${files[@]:looked:$(nproc)}")
  printf '%s\n' "${batch[@]}" | xargs -P "$(nproc)" -I{} bash -c 'look {}'
  looked=$((looked + ${#batch[@]}))
done

# clang 14 cannot read some of what g++ 12's <ranges> has: such a source is counted, not judged.
unread=$(grep -l 'clang-diagnostic-error' "$reports"/* 2>/dev/null | wc -l || true)
found=$(grep -hE '(warning|error): .*\[[a-z]+-' "$reports"/* 2>/dev/null | grep -v 'clang-diagnostic-error' | sort -u || true)
[ -z "$found" ] || echo "$found"
[ $looked -gt "$unread" ] || { echo "error: no source was read" >&2; exit 2; }
echo "clang-tidy: $looked of ${#files[@]} sources in $SECONDS s, $unread of them not readable by clang 14, $(grep -c . <<<"$found" || true) findings"
[ -z "$found" ]
