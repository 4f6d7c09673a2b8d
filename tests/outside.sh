#!/usr/bin/env bash
# Holds the built program against numbers that Transformers, PEFT, bitsandbytes and tokenizers computed.
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
python3 "$checks/check_families.py" "$assets/oracle-families"
python3 "$checks/check_peft.py" "${peft[@]/#/$assets/oracle-peft/}"
python3 "$checks/check_tokenizers.py" "$assets/oracle-tokenizers" | tail -n 1
python3 "$checks/check_templates.py" "$assets/oracle-templates" | tail -n 1
echo "4 checks ran"
