#!/usr/bin/env bash
# What gathering ahead is worth: seconds of a step of a full fine-tune cut over two ranks, with parallel.prefetch 0 and 1,
# over a link of limited speed between two network namespaces. Needs root, iproute2, jq and Open MPI.
#   benchmarks/overlap.sh [NIBBLE [RATE [TURNS]]]        RATE as tc knows it (500mbit)
set -euo pipefail
nibble=$(realpath "${1:-build/release/bin/nibble}")
rate=${2:-500mbit}
work=$(mktemp -d)
alpha=overlap-$$-alpha
beta=overlap-$$-beta
cleanup() {
  ip netns del "$alpha" || true
  ip netns del "$beta" || true
  rm -rf "$work"
}
trap cleanup EXIT
cd "$work"

ip netns add "$alpha"
ip netns add "$beta"
ip link add nibble0 netns "$alpha" type veth peer name nibble0 netns "$beta"
host=1
for space in "$alpha" "$beta"; do
  ip -n "$space" link set lo up
  ip -n "$space" addr add "10.78.0.$host/24" dev nibble0
  ip -n "$space" link set nibble0 up
  ip netns exec "$space" tc qdisc add dev nibble0 root tbf rate "$rate" burst 1mb latency 50ms
  host=2
done
cat > agent.sh <<END
#!/bin/sh
address=\$1; shift
case \$address in 10.78.0.1) host=alpha; space=$alpha;; *) host=beta; space=$beta;; esac
exec ip netns exec \$space unshare --uts sh -c "hostname \$host; \$*"
END
chmod +x agent.sh

cat > config.json <<'END'
{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 512, "intermediate_size": 1408,
 "num_hidden_layers": 8, "num_attention_heads": 8, "num_key_value_heads": 8, "vocab_size": 4096,
 "max_position_embeddings": 512, "rms_norm_eps": 1e-5, "tie_word_embeddings": false, "torch_dtype": "float32"}
END
"$nibble" init --config config.json --out model --dtype f32
awk 'BEGIN { for (i = 0; i < 16; i++) { line = ""; for (t = 0; t < 256; t++) line = line (t ? "," : "") (3 + (7 * i + t * t) % 4000)
  printf "{\"input_ids\":[%s],\"labels\":[%s]}\n", line, line } }' > data.jsonl
jq -n --arg here "$work" '{model: {path: ($here + "/model"), compute_dtype: "f32"},
  data: {train: ($here + "/data.jsonl"), format: "tokens", pack: false, max_length: 256},
  train: {steps: 6, accumulate: 2, microbatch_size: 1}, optimizer: {lr: 0.0001}, parallel: {shard: 2}}' > recipe.json

for turn in $(seq "${3:-2}"); do
  for prefetch in 0 1; do
    OMPI_MCA_plm_rsh_agent=$work/agent.sh OMPI_MCA_btl=tcp,self OMPI_MCA_btl_tcp_if_include=10.78.0.0/24 \
      OMPI_MCA_oob_tcp_if_include=10.78.0.0/24 ip netns exec "$alpha" unshare --uts sh -c 'hostname alpha; exec "$@"' sh \
      "$nibble" launch -n 2 --hosts 10.78.0.1:1,10.78.0.2:1 --threads 1 -- train recipe.json parallel.prefetch=$prefetch \
      output.dir="out-$turn-$prefetch" 2> log || { cat log; exit 1; }
    echo "turn $turn, prefetch $prefetch: median step $(jq -s '[.[] | select(.split == "train") | .seconds] | .[1:] | sort |
      .[length / 2 | floor]' "out-$turn-$prefetch/metrics.jsonl") s"
  done
done
