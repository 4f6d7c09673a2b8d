#!/usr/bin/env bash
# Installs the built nibble into an empty prefix and builds the programs of docs/examples against it, as a user would:
# with find_package and with pkg-config. Runs them on the small model of tests/data.
#   bash tests/embedding/run.sh BUILD_DIR [SANITIZERS]      the -fsanitize options that it was built with
set -Eeuo pipefail
trap 'echo "embedding/run.sh: line $LINENO failed: $BASH_COMMAND" >&2' ERR
build=$(cd "$1" && pwd)
sanitizers=${2:-}
source=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

cmake --install "$build" --prefix "$work/prefix" >/dev/null
cp -r "$source/docs/examples" "$work/examples" # nothing of the source tree beside them
cmake -G "Unix Makefiles" -S "$work/examples" -B "$work/build" -DCMAKE_PREFIX_PATH="$work/prefix" -DCMAKE_BUILD_TYPE=Release \
  -DCMAKE_CXX_FLAGS="$sanitizers" -DCMAKE_CXX_FLAGS_RELEASE=-O0 >/dev/null # the library does the work
cmake --build "$work/build" -j 2 >/dev/null

export PKG_CONFIG_PATH=$work/prefix/lib/pkgconfig:$work/prefix/lib/x86_64-linux-gnu/pkgconfig
# shellcheck disable=SC2086
cc -std=c99 -Wall -Wextra -Werror -O0 $sanitizers -o "$work/train_from_c" "$source/docs/examples/train_from_c.c" \
  $(pkg-config --cflags --libs nibble)
pkg-config --modversion nibble

for page in nibble nibble-train nibble-recipes; do test -s "$work/prefix/share/man/man1/$page.1"; done
bash -n "$work/prefix/share/bash-completion/completions/nibble"
# shellcheck disable=SC1091
(
  source "$work/prefix/share/bash-completion/completions/nibble"
  COMP_WORDS=(nibble merge --ad) COMP_CWORD=2
  _nibble
  [[ " ${COMPREPLY[*]} " == *" --adapter "* ]] || { echo "completion gives ${COMPREPLY[*]}" >&2; exit 1; }
)

# A program on one machine links no MPI; one with ranks does. (Read whole: a `grep -q` that leaves first would let ldd
# die of SIGPIPE, which pipefail takes for a failure.)
loads_mpi() { [[ $(ldd "$1") == *libmpi* ]]; }
for program in finetune_from_memory generate_with_adapter; do
  if grep -q libmpi "$work/build/CMakeFiles/$program.dir/link.txt" || loads_mpi "$work/build/$program"; then
    echo "$program is linked with MPI" >&2
    exit 1
  fi
done
loads_mpi "$work/build/ranks_over_mpi"
mpirun --allow-run-as-root --oversubscribe -n 2 "$work/build/ranks_over_mpi" | tee "$work/ranks"
grep -q '2 ranks on 1 host.*; sum 3$' "$work/ranks"

model=$source/tests/data/stories-llama
"$work/build/finetune_from_memory" "$model" "$work/adapter" 30 | tee "$work/steps"
test "$(wc -l <"$work/steps")" -le 30
"$work/build/generate_with_adapter" "$model" "$work/adapter" "The dog saw a ball."
for i in 1 2 3 4 5 6 7 8; do echo "{\"text\": \"Once upon a time, story $i was told to a little dog.\"}"; done >"$work/data.jsonl"
"$work/train_from_c" "$model" "$work/data.jsonl" "$work/run" | tee "$work/said"
grep -q '^step 3 of 6' "$work/said"
grep -q '^stopped: ' "$work/said"
grep -q '^step 6 of 6' "$work/said"
test "$(grep -c '^step ' "$work/said")" -eq 6 # stopped after three, went on with the fourth
grep -q '^text:' "$work/said"
