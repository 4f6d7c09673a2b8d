#!/usr/bin/env bash
# Compares the built program with numbers that Transformers, PEFT, bitsandbytes, TRL and tokenizers computed.
# The checks and their cases lie beside the test assets; where they are absent nothing is checked, and that is said.
#   CHECKS=required bash tests/outside.sh     absent checks are a failure
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
assets=${NIBBLE_TEST_ASSETS:-../shared/assets}
checks=$assets/../checks
export NIBBLE=${NIBBLE:-build/release/bin/nibble}

if [ ! -d "$checks" ]; then
  echo "0 checks ran: there are none beside $assets"
  [ "${CHECKS:-}" != required ]
  exit
fi

peft=(all-linear-rslora bias-lora_only dora layers-to-transform lora-default-targets modules-to-save qlora-nf4-dq
  rank-and-alpha-pattern two-adapters-to-combine)
programs=0 passed=0
last=$(mktemp)
trap 'rm -f "$last"' EXIT
check() { # lines to show of its end, program, cases ...; the program's last line: "N of M cases hold"
  local lines=$1 program=$2
  shift 2
  python3 "$checks/$program" "$@" | tee "$last" | tail -n "$lines"
  programs=$((programs + 1))
  passed=$((passed + $(sed -nE '$s/^([0-9]+) of .*/\1/p' "$last")))
}
check +1 check_families.py "$assets/oracle-families"
check +1 check_families.py "$assets/oracle-families-2"
check +1 check_peft.py "${peft[@]/#/$assets/oracle-peft/}"
check 1 check_tokenizers.py "$assets/oracle-tokenizers"
check 1 check_templates.py "$assets/oracle-templates"
check 1 check_objectives.py "$assets/oracle-objectives"
echo "$programs programs ran, $passed checks hold"
