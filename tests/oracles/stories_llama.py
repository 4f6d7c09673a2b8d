"""A little Llama of our own, trained here on stories of texts.py, and its other forms: what most tests run on.

    python stories_llama.py DATA [--steps 1100]     DATA/stories-llama: the model and its SentencePiece tokenizer
    python stories_llama.py DATA --forms            from it: stories-llama-bf16, -nf4-dq (bitsandbytes), -gguf, golden ids and logits

The golden values are those of Transformers, on one thread in float64: golden_ids.npy, the start token and the 200 ids that follow
greedily; golden_logits_first64.npy, the logits of the first 64 of them.
"""
import argparse, io, json, os, random, shutil
from pathlib import Path

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
import numpy as np
import gguf, sentencepiece, torch, transformers
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

import texts

transformers.logging.set_verbosity_error()
CONFIG = dict(vocab_size=512, hidden_size=64, intermediate_size=172, num_hidden_layers=5, num_attention_heads=8,
              num_key_value_heads=4, max_position_embeddings=512, rms_norm_eps=1e-5, tie_word_embeddings=True)
# As published checkpoints of the family write it.
CONFIG_JSON = dict(architectures=["LlamaForCausalLM"], model_type="llama", hidden_act="silu", bos_token_id=1, eos_token_id=2,
                   initializer_range=0.02, pretraining_tp=1, rope_scaling=None, rope_theta=10000.0, attention_bias=False,
                   use_cache=True, torch_dtype="float32", **CONFIG)


def write_json(path, value):
    path.write_text(json.dumps(value, indent=2) + "\n")


def train_tokenizer(lines):
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_writer=model, model_type="bpe", vocab_size=CONFIG["vocab_size"], byte_fallback=True,
        normalization_rule_name="identity", remove_extra_whitespaces=False, split_digits=True, character_coverage=1.0,
        allow_whitespace_only_pieces=True, num_threads=1, minloglevel=2)
    return model.getvalue()


def train(folder, steps, batch=16, length=128):
    torch.manual_seed(1)
    torch.set_num_threads(1)  # the matrices are small
    r = random.Random(1)
    documents = ["\n".join(texts.with_new_words(r, story, 0.2) for story in texts.stories(seed, 3, "park")) for seed in range(4000)]
    tokenizer = train_tokenizer([line for document in documents[:1000] for line in document.split("\n")])
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.model").write_bytes(tokenizer)
    write_json(folder / "tokenizer_config.json", dict(
        add_bos_token=True, add_eos_token=False, bos_token="<s>", eos_token="</s>", unk_token="<unk>", pad_token=None, legacy=True,
        model_max_length=512, tokenizer_class="LlamaTokenizer", clean_up_tokenization_spaces=False, sp_model_kwargs={}))
    write_json(folder / "special_tokens_map.json", dict(bos_token="<s>", eos_token="</s>", unk_token="<unk>"))
    write_json(folder / "generation_config.json", dict(bos_token_id=1, eos_token_id=2, do_sample=False))
    write_json(folder / "config.json", CONFIG_JSON)
    processor = sentencepiece.SentencePieceProcessor(model_proto=tokenizer)
    stream = torch.tensor([id for document in documents for id in [1, *processor.encode(document), 2]])
    print(len(stream), "tokens", flush=True)
    model = LlamaForCausalLM(LlamaConfig(**CONFIG))
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3, betas=(0.9, 0.95), weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 4e-3, total_steps=steps, pct_start=0.05)
    for step in range(steps):
        starts = torch.randint(len(stream) - length, (batch,))
        rows = torch.stack([stream[start:start + length] for start in starts])
        loss = model(input_ids=rows, labels=rows).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 25 == 0 or step == steps - 1:
            print(step, loss.item(), flush=True)
    save_file({name: p.detach().clone() for name, p in model.named_parameters()}, folder / "model.safetensors", {"format": "pt"})


@torch.no_grad()
def write_golden(folder):
    """In float64 throughout, and the lead of every greedy choice must be one that float32 cannot turn."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64, attn_implementation="eager").eval()
    ids = [1]
    for _ in range(200):
        top = model(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1].topk(2)
        assert top.values[0] - top.values[1] > 2e-4, f"a tie at {len(ids)}: train with another seed"
        ids.append(int(top.indices[0]))
    logits = model(input_ids=torch.tensor([ids[:64]]), use_cache=False).logits[0]
    np.save(folder / "golden_ids.npy", np.array(ids))
    np.save(folder / "golden_logits_first64.npy", logits.float().numpy())
    print(sentencepiece.SentencePieceProcessor(str(folder / "tokenizer.model")).decode(ids))


def copy_form(source, folder):
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(source, folder, ignore=lambda _, names: [n for n in names if n.startswith(("golden", "model."))])


def write_bf16(source, folder):
    copy_form(source, folder)
    write_json(folder / "config.json", {**CONFIG_JSON, "torch_dtype": "bfloat16"})
    weights = load_file(source / "model.safetensors")
    save_file({name: w.bfloat16() for name, w in weights.items()}, folder / "model.safetensors", {"format": "pt"})
    write_golden(folder)


def write_nf4(source, folder):
    copy_form(source, folder)
    quantize = transformers.BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True,
                                               bnb_4bit_compute_dtype=torch.float32)
    model = AutoModelForCausalLM.from_pretrained(source, quantization_config=quantize, device_map="cpu", dtype=torch.float32)
    model.save_pretrained(folder)
    saved = json.loads((folder / "config.json").read_text())
    write_json(folder / "config.json", {**CONFIG_JSON, "quantization_config": saved["quantization_config"]})
    shutil.copy(source / "generation_config.json", folder)


GGUF_LAYERS = 2  # the first ones: all that a layer can have, in less than half of the bytes


def write_gguf(source, folder):
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    weights = {name: w.numpy() for name, w in load_file(source / "model.safetensors").items()}
    pieces = sentencepiece.SentencePieceProcessor(str(source / "tokenizer.model"))
    kinds = [gguf.TokenType.UNKNOWN if pieces.is_unknown(i) else gguf.TokenType.CONTROL if pieces.is_control(i) else
             gguf.TokenType.BYTE if pieces.is_byte(i) else gguf.TokenType.NORMAL for i in range(len(pieces))]
    names = {"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "self_attn.q_proj": "attn_q",
             "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
             "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down"}
    heads = {"attn_q": CONFIG["num_attention_heads"], "attn_k": CONFIG["num_key_value_heads"]}
    tensors = {"token_embd.weight": weights["model.embed_tokens.weight"], "output_norm.weight": weights["model.norm.weight"]}
    for layer in range(GGUF_LAYERS):
        for ours, theirs in names.items():
            w = weights[f"model.layers.{layer}.{ours}.weight"]
            if theirs in heads:  # llama.cpp turns neighbouring elements
                w = w.reshape(heads[theirs], 2, -1, w.shape[1]).swapaxes(1, 2).reshape(w.shape)
            tensors[f"blk.{layer}.{theirs}.weight"] = w
    for file, eight_bits in [("f32.gguf", False), ("q8_0.gguf", True)]:
        writer = gguf.GGUFWriter(folder / file, "llama")
        writer.add_name("stories-llama")
        writer.add_context_length(CONFIG["max_position_embeddings"])
        writer.add_embedding_length(CONFIG["hidden_size"])
        writer.add_block_count(GGUF_LAYERS)
        writer.add_feed_forward_length(CONFIG["intermediate_size"])
        writer.add_head_count(CONFIG["num_attention_heads"])
        writer.add_head_count_kv(CONFIG["num_key_value_heads"])
        writer.add_layer_norm_rms_eps(CONFIG["rms_norm_eps"])
        writer.add_rope_dimension_count(CONFIG["hidden_size"] // CONFIG["num_attention_heads"])
        writer.add_rope_freq_base(10000.0)
        writer.add_vocab_size(CONFIG["vocab_size"])
        writer.add_tokenizer_model("llama")
        writer.add_token_list([pieces.id_to_piece(i) for i in range(len(pieces))])
        writer.add_token_scores([pieces.get_score(i) for i in range(len(pieces))])
        writer.add_token_types([int(kind) for kind in kinds])
        writer.add_bos_token_id(1)
        writer.add_eos_token_id(2)
        writer.add_unk_token_id(0)
        for name, w in tensors.items():
            q8 = gguf.GGMLQuantizationType.Q8_0
            if eight_bits and w.ndim == 2 and w.shape[1] % 32 == 0:
                writer.add_tensor(name, gguf.quants.quantize(w, q8), raw_dtype=q8)
            else:
                writer.add_tensor(name, np.ascontiguousarray(w))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("--steps", type=int, default=1100)
    parser.add_argument("--forms", action="store_true")
    arguments = parser.parse_args()
    source = arguments.data / "stories-llama"
    if not arguments.forms:
        train(source, arguments.steps)
    torch.set_num_threads(1)
    write_golden(source)
    write_bf16(source, source.with_name("stories-llama-bf16"))
    write_nf4(source, source.with_name("stories-llama-nf4-dq"))
    write_gguf(source, source.with_name("stories-llama-gguf"))
