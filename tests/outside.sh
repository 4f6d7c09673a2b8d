#!/usr/bin/env bash
# Holds the built program against numbers that Transformers, PEFT, bitsandbytes and tokenizers computed.
# The checks and their cases lie beside the test assets; where they are absent nothing is checked, and that is said.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
assets=${NIBBLE_TEST_ASSETS:-../shared/assets}
checks=$assets/../checks
export NIBBLE=${NIBBLE:-build/release/bin/nibble}

if [ ! -d "$checks" ]; then
  echo "no checks beside $assets: skipped"
  exit 0
fi

families=(llama2 llama3-scaling mistral-window qwen2)
peft=(lora-default-targets all-linear-rslora qlora-nf4-dq)
python3 "$checks/check_families.py" "${families[@]/#/$assets/oracle-families/}"
python3 "$checks/check_peft.py" "${peft[@]/#/$assets/oracle-peft/}"
