"""Writes the seeds of every fuzz target into tests/fuzz/seeds: small files that the readers accept, and a few that they
must refuse. Regressions (regression-*) are added by hand and stay; those of parquet and arrow
are made by tests/oracles/tables.py."""
import gzip
import json
import pathlib
import struct

SEEDS = pathlib.Path(__file__).parent / "seeds"


def put(target, name, content):
    folder = SEEDS / target
    folder.mkdir(parents=True, exist_ok=True)
    if not isinstance(content, (bytes, str)):
        content = json.dumps(content)
    (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())


def safetensors(header, data):
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def entry(dtype, shape, begin, end):
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


TENSORS = {"__metadata__": {"format": "pt"}, "a": entry("F32", [2, 3], 0, 24), "b": entry("BF16", [4], 24, 32),
           "c": entry("U8", [], 32, 33), "d": entry("I64", [0], 33, 33)}
put("safetensors", "types", safetensors(TENSORS, bytes(33)))
put("safetensors", "empty", safetensors({}, b""))
put("safetensors", "overlap", safetensors({"a": entry("F32", [1], 0, 4), "b": entry("F32", [1], 2, 6)}, bytes(6)))
put("safetensors", "hole", safetensors({"a": entry("F32", [1], 4, 8)}, bytes(8)))
put("safetensors", "long", struct.pack("<Q", 2**63) + b"{}")

put("index", "good", {"metadata": {"total_size": 16}, "weight_map": {
    "a": "model-00001-of-00001.safetensors", "b": "model-00001-of-00001.safetensors"}})
put("index", "out", {"weight_map": {"a": "../../etc/passwd"}})
put("index", "missing", {"weight_map": {"a": "model-00002-of-00002.safetensors"}})


def npy(header, data, version=1):
    header += " " * (63 - (10 + len(header)) % 64) + "\n"
    size = struct.pack("<H", len(header)) if version == 1 else struct.pack("<I", len(header))
    return b"\x93NUMPY" + bytes([version, 0]) + size + header.encode() + data


put("npy", "floats", npy("{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }", bytes(24)))
put("npy", "ids", npy("{'descr': '<i8', 'fortran_order': False, 'shape': (5,), }", bytes(40)))
put("npy", "scalar2", npy("{'descr': '|u1', 'fortran_order': False, 'shape': (), }", bytes(1), 2))
put("npy", "fortran", npy("{'descr': '<f8', 'fortran_order': True, 'shape': (1,), }", bytes(8)))

STATE = {"step": 3, "optimizer_updates": 3, "settings": {"optimizer.lr": "0.1"}, "best_loss": 1.5, "best_step": 2,
         "evaluations_since_best": 1}
put("state", "good", STATE)
put("state", "null", dict(STATE, best_loss=None))
put("manifest", "good", {"format": 1, "files": {"state.json": {"bytes": 107, "xxh3_128": "0" * 32},
                                               "recipe.json": {"bytes": 2, "xxh3_128": "0" * 32}}})
put("manifest", "future", {"format": 2, "files": {}})
put("manifest", "outside", {"format": 1, "files": {"state.json": {}, "recipe.json": {}, "../../x": {"bytes": 1, "xxh3_128": ""}}})
SLICES = {"a": {"global_shape": [2, 3], "offset": [0, 0]}, "b": {"global_shape": [4], "offset": [0]}}
put("slices", "good", safetensors({"__metadata__": {"slices": json.dumps(SLICES)}, "a": entry("F32", [2, 3], 0, 24),
                                   "b": entry("F32", [4], 24, 40)}, bytes(40)))
PART = {"a": {"global_shape": [2, 3], "offset": [1, 0]}, "b": {"global_shape": [4], "offset": [2]}}
put("slices", "parts", safetensors({"__metadata__": {"slices": json.dumps(PART)}, "a": entry("F32", [1, 3], 0, 12),
                                    "b": entry("F32", [2], 12, 20)}, bytes(20)))

LLAMA = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 32, "intermediate_size": 64,
         "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64,
         "rms_norm_eps": 1e-5, "vocab_size": 64, "hidden_act": "silu", "bos_token_id": 1, "eos_token_id": [2, 3]}
put("config", "llama", LLAMA)
put("config", "llama3-rope", dict(LLAMA, rope_scaling={
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192}))
put("config", "gemma2", dict(LLAMA, architectures=["Gemma2ForCausalLM"], model_type="gemma2", head_dim=8, sliding_window=4,
                             hidden_activation="gelu_pytorch_tanh", query_pre_attn_scalar=8, attn_logit_softcapping=50.0,
                             final_logit_softcapping=30.0, layer_types=["sliding_attention", "full_attention"]))
put("config", "neox", {"architectures": ["GPTNeoXForCausalLM"], "model_type": "gpt_neox", "hidden_size": 32,
                       "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4, "rotary_pct": 0.5,
                       "max_position_embeddings": 64, "vocab_size": 64, "use_parallel_residual": True})
put("config", "gpt2", {"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "n_embd": 32, "n_layer": 1, "n_head": 4,
                       "n_positions": 64, "vocab_size": 64})
put("config", "four-bit", dict(LLAMA, quantization_config={
    "quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": True,
    "bnb_4bit_compute_dtype": "bfloat16", "llm_int8_skip_modules": ["lm_head", ".*\\.mlp\\..*"]}))
# Mixtures, hybrids, latent attention and the rest: the config.json of one small model of each type.
for model in sorted((pathlib.Path(__file__).parents[1] / "data/goldens/model_types").glob("*/model/config.json")):
    put("config", model.parts[-3], json.loads(model.read_text()))

LORA = {"peft_type": "LORA", "r": 8, "lora_alpha": 16, "lora_dropout": 0.05, "target_modules": ["q_proj", "v_proj"],
        "bias": "none", "task_type": "CAUSAL_LM", "base_model_name_or_path": "base"}
put("adapter_config", "lora", LORA)
put("adapter_config", "patterns", dict(LORA, target_modules=".*(q|v)_proj", rank_pattern={"^model.layers.0.*": 4},
                                       alpha_pattern={"k_proj": 2}, layers_to_transform=[0, 2], layers_pattern="layers",
                                       modules_to_save=["lm_head"], use_rslora=True, use_dora=True, lora_bias=True))
put("adapter_config", "experts", dict(LORA, target_parameters=["mlp.experts.gate_up_proj", "mlp.experts.down_proj", "gate.weight"],
                                      rank_pattern={r".*\.experts\.gate_up_proj": 16}))
put("adapter_config", "rows", dict(LORA, trainable_token_indices={"embed_tokens": [1, 5]}, task_type="SEQ_CLS"))
put("adapter_config", "other", {"peft_type": "PROMPT_TUNING"})

RECIPE = {"model": {"path": "base", "quantize": "nf4"}, "adapter": {"r": 4, "target_modules": "all-linear"},
          "data": {"train": ["a.jsonl", {"path": "b.jsonl", "weight": 2.0}], "eval_fraction": 0.1, "max_length": 512},
          "train": {"steps": 10, "save_every": "10min", "eval_every": 5}, "optimizer": {"lr": 1e-4, "betas": [0.9, 0.95]},
          "output": {"dir": "out", "keep_best": True}}
put("recipe", "lora", "optimizer.lr=1e-3\n" + json.dumps(RECIPE))
put("recipe", "comments", "\n// a comment\n" + json.dumps(RECIPE, indent=1).replace('"train": {', '/* here */ "train": {'))
put("recipe", "pretrain", "train.epochs=2\n" + json.dumps({"model": {"init": "config.json", "tokenizer": "t"}, "data": {"train": "x.txt"},
                                                           "output": {"dir": "o"}, "optimizer": {"schedule": "linear", "warmup_ratio": 0.1}}))
put("recipe", "grpo", "rollout.completions=4\n" + json.dumps(dict(RECIPE, objective={
    "type": "grpo", "beta": 0.04, "epsilon_high": 0.28, "scale_rewards": "batch", "num_iterations": 2},
    rollout={"max_new_tokens": 8, "top_p": 0.9, "stop": ["\n"]},
    rewards=[{"type": "exact", "column": "answer"}, {"type": "regex", "pattern": "a+", "weight": 0.5},
             {"type": "command", "argv": ["true"], "timeout_seconds": 1}])))
put("recipe", "dpo", "objective.beta=0.2\n" + json.dumps(dict(RECIPE, objective={
    "type": "dpo", "loss_type": ["sigmoid", "sft"], "loss_weights": [1.0, 0.5], "reference": "initial"},
    parallel={"pipeline": 2, "shard": 2, "experts": 2})))
put("recipe", "unknown", "train.stepz=3\n" + json.dumps(RECIPE))

put("yaml", "recipe", """# a recipe
model: {path: llama, quantize: nf4}
adapter:
  r: 8
  target_modules: [q_proj, v_proj]
data: {train: x.jsonl}
optimizer:
  lr: 2e-4   # a number
output:
  dir: "o"
""")
put("yaml", "scalars", "a: ~\nb: True\nc: '1'\nd: |\n  two\n  lines\ne: >-\n  one\n  line\nf: \"\\u00e9\\x41\\n\"\ng: 0x1F\nh: .nan\ni: 1e400\n")
put("yaml", "aliases", "a: &x {k: [1, 2]}\nb: *x\nc: [*x, *x]\n<<: *x\n")
put("yaml", "latin1", b"model: {path: caf\xe9}\n")
put("yaml", "comma", ",a: 1\n")
put("yaml", "nested", "- - - [[[{a: [b, {c: d}]}]]]\n")
put("yaml", "documents", "---\na: 1\n---\nb: 2\n")
put("yaml", "tags", "!!str a: !!int \"1\"\n? [k]\n: v\n")

VOCAB = {"<s>": 0, "</s>": 1, "<unk>": 2, "a": 3, "b": 4, "ab": 5, "\u0120": 6, "\u0120a": 7, "<0x41>": 8}
ADDED = [{"id": 0, "content": "<s>", "special": True, "lstrip": False, "rstrip": True, "normalized": False, "single_word": False},
         {"id": 1, "content": "</s>", "special": True}]
BPE = {"version": "1.0", "added_tokens": ADDED, "model": {
    "type": "BPE", "vocab": VOCAB, "merges": ["a b", ["\u0120", "a"]], "unk_token": "<unk>", "byte_fallback": True, "fuse_unk": True}}
put("tokenizer_json", "bpe", BPE)
put("tokenizer_json", "byte-level", dict(
    BPE, pre_tokenizer={"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}, decoder={"type": "ByteLevel"},
    post_processor={"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
                    "pair": [], "special_tokens": {"<s>": {"id": "<s>", "ids": [0], "tokens": ["<s>"]}}}))
put("tokenizer_json", "sequence", dict(
    BPE, normalizer={"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "Lowercase"}, {"type": "Prepend", "prepend": "\u2581"},
                                                        {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}]},
    pre_tokenizer={"type": "Sequence", "pretokenizers": [
        {"type": "Split", "pattern": {"Regex": "\\p{N}{1,3}| ?\\p{L}+"}, "behavior": "Isolated", "invert": False},
        {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "first", "split": True}]},
    decoder={"type": "Sequence", "decoders": [{"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "}, {"type": "ByteFallback"},
                                             {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]}))
put("tokenizer_json", "wordpiece", {"model": {"type": "WordPiece", "vocab": {"[UNK]": 0, "a": 1, "##b": 2}, "unk_token": "[UNK]",
                                              "continuing_subword_prefix": "##", "max_input_chars_per_word": 100},
                                    "normalizer": {"type": "BertNormalizer"}, "pre_tokenizer": {"type": "BertPreTokenizer"}})
put("tokenizer_json", "unigram", {"model": {"type": "Unigram", "unk_id": 0, "vocab": [["<unk>", 0.0], ["\u2581a", -1.5], ["b", -2.0]]}})


def varint(value):
    text = b""
    while value > 127:
        text += bytes([value & 127 | 128])
        value >>= 7
    return text + bytes([value])


def field(number, content):
    if isinstance(content, int):
        return varint(number << 3) + varint(content)
    if isinstance(content, float):
        return varint(number << 3 | 5) + struct.pack("<f", content)
    return varint(number << 3 | 2) + varint(len(content)) + content


def pieces(extra):
    found = b"".join(field(1, field(1, text.encode()) + field(2, 0.0) + field(3, kind)) for text, kind in
                     (("<unk>", 2), ("<s>", 3), ("</s>", 3), *((f"<0x{i:02X}>", 6) for i in range(256))))
    return found + b"".join(field(1, field(1, text.encode()) + field(2, score)) for text, score in extra)


WORDS = [("\u2581", -1.0), ("a", -2.0), ("b", -3.0), ("\u2581a", -4.0), ("ab", -5.0), ("Hello", -6.0)]
put("sentencepiece", "unigram", pieces(WORDS) + field(2, field(3, 1) + field(35, 1)) + field(3, field(1, b"identity") + field(3, 1)))
put("sentencepiece", "bpe", pieces(WORDS) + field(2, field(3, 2) + field(35, 1)) + field(3, field(3, 1) + field(4, 0) + field(5, 1)))
put("sentencepiece", "charsmap", pieces(WORDS) + field(2, field(3, 2)) + field(3, field(2, struct.pack("<I", 4) + struct.pack("<I", 0) + b"x\0")))

put("roles", "good", {"bos_token": "<s>", "eos_token": {"content": "</s>"}, "pad_token": None, "chat_template": "{{ messages }}"})
put("roles", "named", {"chat_template": [{"name": "default", "template": "a"}, {"name": "tool_use", "template": "b"}],
                       "added_tokens_decoder": {"1": {"content": "<s>", "special": True}}})

put("jsonl", "alpaca", '{"instruction": "Say", "input": "x", "output": "y", "history": [["a", "b"]], "system": "s"}\n')
put("jsonl", "chat", json.dumps({"messages": [
    {"role": "system", "content": "s"}, {"role": "user", "content": [{"type": "text", "text": "u"}]},
    {"role": "assistant", "content": "a", "weight": 0, "tool_calls": [{"function": {"name": "f", "arguments": "{\"x\": 1}"}}]},
    {"role": "tool", "content": "t"}, {"role": "assistant", "content": "z"}], "tools": [{"name": "f"}]}) + "\n")
put("jsonl", "sharegpt", '{"conversations": [{"from": "human", "value": "h"}, {"from": "gpt", "value": "g"}], "tools": "[]"}\r\n')
put("jsonl", "completion", '\ufeff{"prompt": "p", "completion": "c"}\n\n{"question": "q", "answer": "a"}')
put("jsonl", "tokens", '{"input_ids": [1, 2, 300], "labels": [-100, 2, 3]}\n{"text": "^a$"}\n')
put("csv", "quoted", '\ufeffprompt,completion,\r\n"a ""b""\n,c",d,\r\n\r\ne,"",f')
put("csv", "short", "text\na,b\n")
put("packed", "gzip", gzip.compress(b'{"text": "abc"}\n' * 9, mtime=0) + gzip.compress(b'{"text": "d"}', mtime=0))
put("packed", "zstd", bytes.fromhex("28b52ffd04588100007b2261223a317d0a7b2262223a327d0a13474c48"))
put("jsonl", "array", '[{"text": "a"}, {"text": "\\ud83d\\ude00"}]')
put("text", "documents", "one\r\ntwo<|endoftext|>\n\nthree \u00e9")
put("text", "broken", b"a\xffb<|endoftext|>")


def gguf(keys, tensors, data, version=3):
    """keys: (name, kind, bytes of the value); tensors: (name, dimensions, type, offset)"""
    def text(words):
        return struct.pack("<Q", len(words)) + words.encode()
    header = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(keys))
    for name, kind, value in keys:
        header += text(name) + struct.pack("<I", kind) + value
    for name, dimensions, kind, offset in tensors:
        header += text(name) + struct.pack("<I", len(dimensions)) + struct.pack(f"<{len(dimensions)}Q", *dimensions)
        header += struct.pack("<IQ", kind, offset)
    return header + bytes(-len(header) % 32) + data


def gguf_text(words):
    return struct.pack("<Q", len(words)) + words.encode()


KEYS = [("general.architecture", 8, gguf_text("llama")), ("general.alignment", 4, struct.pack("<I", 32)),
        ("f", 6, struct.pack("<f", 1e-5)), ("b", 7, b"\1"), ("u8", 0, b"\xff"), ("i64", 11, struct.pack("<q", -1)),
        ("words", 9, struct.pack("<IQ", 8, 2) + gguf_text("a") + gguf_text("b")),
        ("kinds", 9, struct.pack("<IQ", 5, 3) + struct.pack("<3i", 1, 2, 3)), ("u64", 10, struct.pack("<Q", 2**64 - 1)),
        ("doubles", 9, struct.pack("<IQ", 12, 1) + struct.pack("<d", 0.5))]
put("gguf", "types", gguf(KEYS, [("a", [2, 3], 0, 0), ("b", [32], 8, 32), ("c", [32, 2], 2, 96), ("d", [2], 30, 160),
                                 ("e", [3], 1, 192)], bytes(range(224))))
put("gguf", "empty", gguf([], [], b"", 2))
put("gguf", "unreadable", gguf(KEYS[:1], [("a", [256], 10, 0)], bytes(84)))
put("gguf", "blocks", gguf(KEYS[:1], [("a", [256], 12, 0), ("b", [256], 13, 160), ("c", [256], 14, 352), ("d", [32], 6, 576), ("e", [32], 7, 608)],
                           bytes(range(256)) * 2 + bytes(120)))
put("gguf", "large", gguf([], [("a", [2**31, 2**31, 2**31], 0, 0)], bytes(32)))
put("gguf", "empty-tensor", gguf([], [("a", [2**62, 0, 2**62], 0, 0)], b""))

TEMPLATES = {
    "turns": "{{ bos_token }}{% for m in messages %}{{ '<|' + m['role'] + '|>' }}{% if m.role == 'assistant' %}{% generation %}"
             "{{ m['content'] }}{% endgeneration %}{% else %}{{ m['content'] }}{% endif %}{{ eos_token }}\n{% endfor %}"
             "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}",
    "plain": "{% for m in messages %}{{ m.role }}: {{ m.content | trim }}\n{%- endfor -%}",
    "control": "{%- set ns = namespace(n=0, found=false) -%}{% for m in messages if m.role != 'tool' recursive %}"
               "{% if loop.first %}{{ loop.length }}{% elif loop.index0 is odd %}{% continue %}{% else %}{% break %}{% endif %}"
               "{% set ns.n = ns.n + loop.index %}{{ loop.cycle('a', 'b') }}{{ loop.previtem.role }}{% else %}none{% endfor %}{{ ns.n }}",
    "macros": "{% macro f(x, y=2, *args) %}{{ x ~ y }}{{ varargs }}{{ caller() if caller }}{% endmacro %}{{ f(1, y=3) }}"
              "{% call f('a') %}body{% endcall %}{% filter upper %}text{% endfilter %}{% with a = 1, b = [a] %}{{ b }}{% endwith %}",
    "raise": "{% if messages[0].role != 'system' %}{{ raise_exception('no system ' + messages[0].role) }}{% endif %}"
             "{{ strftime_now('%d %b %Y') }}{# a comment #}{% raw %}{{ x }}{% endraw %}",
    "tools": "{% for t in tools %}{{ t | tojson(indent=4) }}{{ t.function.name }}{% for k, v in t.function.items() %}{{ k }}"
             "{% if v is mapping %}{{ v.keys() | list | length }}{% elif v is string %}{{ v | length }}{% endif %}{% endfor %}{% endfor %}",
    "text": "{{ messages[2].content.split('</think>')[-1].lstrip('\\n') }}{{ 'a,b'.split(',') | join('-') | upper | replace('A', 'c') }}"
            "{{ 'x' * 3 }}{{ '%s %5.2f' | format('a', 1.5) }}{{ '{0:>4}{k!r}'.format(1, k='z') }}{{ 'abc'[::-1] }}{{ 'a b' | title | center(9) }}",
    "numbers": "{{ 2 ** 10 // 3 % 7 - 1.5e3 / 4 }}{{ (1, 2)[0] + [3][0] }}{{ 5 | float | round(2) }}{{ not (1 < 2 <= 3) or 1 in [1] }}"
               "{{ range(3) | sum }}{{ '12' | int + 0x1f }}{{ -3 | abs }}{{ 10000000000000000000000 * 3 }}",
    "items": "{{ messages | map(attribute='role') | list | unique | sort | join }}{{ messages | selectattr('role', 'equalto', 'user') | list | tojson }}"
             "{{ messages | groupby('role') | first }}{{ [3, 1] | sort(reverse=true) | batch(2, 0) | list }}{{ {'a': 1} | dictsort | items | list }}",
    "shared": "{% set ns = namespace(x=[1], t=(1,), n=namespace()) %}{% for i in range(30) %}{% set ns.x = [ns.x, ns.x] %}"
              "{% set ns.t = (ns.t, ns.t) %}{% set ns.n = namespace(a=ns.n, b=ns.n) %}{% if i == 3 %}{{ ns.x == [ns.x] }}{{ ns.x in [ns.x] }}"
              "{{ ns.x|tojson }}{{ [ns.x, ns.x]|sort|join }}{{ {ns.t: ns.n}|dictsort }}{{ ns.n }}{{ '%s' % [ns.x] }}{% endif %}{% endfor %}"
              "{{ ns.x }}",
    "wrong": "{% for m in messages %}{{ m.content }}{% endif %}",
}
for name, source in TEMPLATES.items():
    put("chat_template", name, source)
for name in ("turns", "plain", "raise"):
    put("trained_template", name, TEMPLATES[name])
put("trained_template", "think", "{% for m in messages %}<{{ m.role }}>{% if loop.last and m.reasoning_content %}<think>{{ m.reasoning_content }}</think>"
    "{% endif %}{{ m.content | trim }}{% for c in m.tool_calls or [] %}{{ c.function | tojson }}{% endfor %}</s>{% endfor %}"
    "{{ '<assistant>' if add_generation_prompt }}")

REQUEST = {"messages": [{"role": "user", "content": [{"type": "text", "text": "u"}]},
                        {"role": "assistant", "content": "a", "reasoning_content": "r", "tool_calls": [{"function": {"name": "f"}}]}],
           "tools": [{"name": "f", "x": 1e3}], "documents": None}
put("template_request", "tools", REQUEST)
put("template_request", "continued", dict(REQUEST, continue_final_message=True, chat_template_kwargs={"x": -12345678901234567890}))
put("template_request", "thinking", dict(REQUEST, continue_final_message="thinking"))
put("template_request", "prompted", dict(REQUEST, add_generation_prompt=True, documents=[{"a": "\u00e9\ud83d\ude00"}], tools=None))

GPT2 = json.dumps({"a": 0, "b": 1, "ab": 2, "\u0120": 3, "<|endoftext|>": 4, "<s>": 5, "</s>": 6})
put("vocab_and_merges", "gpt2", GPT2 + '\n{"tokenizer_class": "GPT2Tokenizer", "add_bos_token": true}\n#version: 0.2\na b\n')
put("vocab_and_merges", "roberta", GPT2 + '\n{"tokenizer_class": "RobertaTokenizer", "cls_token": {"content": "<s>"}, "sep_token": "</s>"}\na b\n')
put("vocab_and_merges", "qwen", GPT2 + '\n{"tokenizer_class": "Qwen2Tokenizer", "add_prefix_space": false}\na b\n')
