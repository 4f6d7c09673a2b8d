"""Faults 1 to 22 and 58 to 62 of docs/reliability.md: model files as no honest program writes them."""
import json
import os
import pathlib
import shutil
import struct
import unittest

import program
from program import CONFIG, read_safetensors, run, write_safetensors

EMBEDDING = "model.embed_tokens.weight"


class ModelFiles(program.FaultTest):
    def weights(self):
        return self.model / "model.safetensors"

    def refused(self, *parts, code=3):
        """The model is opened by quantize, which leaves nothing behind."""
        return self.ends(code, ["quantize", "--model", self.model, "--out", self.folder / "out"], *parts)

    def loading_refused(self, *parts, adapter=None, code=3):
        program.write_ids(self.folder / "ids.npy", [3, 4, 5])
        words = ["logits", "--model", self.model, "--ids", self.folder / "ids.npy", "--out", self.folder / "l.npy"]
        self.ends(code, words + (["--adapter", adapter] if adapter else []), *parts)

    def with_header(self, change, *parts):
        header, data = read_safetensors(self.weights())
        changed = change(header, data)
        header, data = changed if isinstance(changed, tuple) else (header, data)
        write_safetensors(self.weights(), header, data)
        self.refused(self.weights(), *parts)

    def with_config(self, *parts, **values):
        config = dict(CONFIG, **values)
        (self.model / "config.json").write_text(json.dumps({k: v for k, v in config.items() if v != "absent"}))
        self.refused(self.model, *parts)

    # safetensors
    def test_empty_or_shorter_than_a_header(self):
        for size in (0, 1, 7, 8):
            self.weights().write_bytes(b"\x40" + b"\0" * 7 if size == 8 else b"\0" * size)
            self.refused(self.weights(), "truncated header" if size else "is empty")

    def test_impossible_header_lengths(self):
        header, data = read_safetensors(self.weights())
        for length, reason in ((2**63, "header claims"), (2**64 - 1, "header claims"), (10**8 + 1, "header claims"),
                               (10**8, "truncated header"), (0, "does not start with '{'")):
            write_safetensors(self.weights(), header, data, length)
            self.refused(self.weights(), reason)

    def test_headers_that_are_no_json(self):
        data = read_safetensors(self.weights())[1]
        bomb = b'{"a":' * 100000
        for text, reason in ((b"[1]", "does not start with '{'"), (b'{"a', "no valid JSON"), (b'{"\xff\xfe": 1}', "no valid JSON"),
                             (bomb, "header has an object where"), (b'{"a":' + b"[" * 100000, "header has an array where")):
            write_safetensors(self.weights(), text, data)
            self.refused(self.weights(), reason)

    def test_a_tensor_named_twice(self):
        header, data = read_safetensors(self.weights())
        text = json.dumps(header).encode()[:-1] + b', "' + EMBEDDING.encode() + b'": ' + json.dumps(header[EMBEDDING]).encode() + b"}"
        write_safetensors(self.weights(), text, data)
        self.refused(self.weights(), EMBEDDING, "comes twice")

    def test_offsets(self):
        def other(begin, end, name="model.norm.weight"):
            def change(header, _):
                header[name]["data_offsets"] = [begin, end]
            return change
        header, data = read_safetensors(self.weights())
        begin, end = header["model.norm.weight"]["data_offsets"]
        original = self.weights().read_bytes()
        for change, reason in ((other(begin - 4, end - 4), "overlaps"), (other(end, begin), "no range"),
                               (other(-1, end), "a negative number"), (other(0.5, end), "a fraction"),
                               (other(begin, 2**63), "over 2^63"), (other(begin, 1e400), "no valid JSON"),
                               (other(begin, end + 4), "bytes of data"), (other(len(data), len(data) + end - begin), "past the end")):
            self.weights().write_bytes(original)
            self.with_header(change, reason)

    def test_holes_and_trailing_bytes(self):
        header, data = read_safetensors(self.weights())
        write_safetensors(self.weights(), header, data + b"\0" * 12)
        self.refused(self.weights(), "12 bytes after the last tensor")
        last = max(header.values(), key=lambda entry: entry.get("data_offsets", [0])[0])
        last["data_offsets"] = [n + 8 for n in last["data_offsets"]]
        write_safetensors(self.weights(), header, data + b"\0" * 8)
        self.refused(self.weights(), "leaves a gap")

    def test_shapes_and_types(self):
        original = self.weights().read_bytes()
        for values, reason in (({"shape": [2**40, 2**40]}, "overflows"), ({"shape": [31]}, "bytes of data"),
                               ({"dtype": "F8_E5M2"}, "F8_E5M2"), ({"dtype": 3}, "a number"),
                               ({"shape": [1] * 17}, "too many dimensions"), ({"shape": "x"}, "a string")):
            self.weights().write_bytes(original)
            self.with_header(lambda header, _: header["model.norm.weight"].update(values), "model.norm.weight", reason)

    def test_cut_data(self):
        self.weights().write_bytes(self.weights().read_bytes()[:-100])
        self.refused(self.weights(), "past the end of the file")

    def test_nan_or_inf_in_the_base_is_named(self):
        header, data = read_safetensors(self.weights())
        name = "model.layers.1.mlp.up_proj.weight"
        begin = header[name]["data_offsets"][0]
        for bits in (0x7fc00000, 0xff800000):  # not a number, minus infinity
            spoiled = bytearray(data)
            spoiled[begin + 4 * 37:begin + 4 * 38] = struct.pack("<I", bits)
            write_safetensors(self.weights(), header, bytes(spoiled))
            self.refused(f"{self.weights()}: {name}: element [1, 5] is infinite or not a number", code=5)

    def spoiled(self, name, element=0):
        """The weights with one number of a tensor that is not a number."""
        header, data = read_safetensors(self.weights())
        begin = header[name]["data_offsets"][0] + 4 * element
        write_safetensors(self.weights(), header, data[:begin] + struct.pack("<I", 0x7fc00000) + data[begin + 4:])

    def test_training_on_a_weight_that_is_not_a_number_exports_nothing(self):
        self.mixture()
        for name in ("mlp.gate.weight", "mlp.experts.1.up_proj.weight", "self_attn.q_proj.weight", "input_layernorm.weight"):
            for steps in (2, 5):  # fewer than train.max_bad_steps, and more
                with self.subTest(name=name, steps=steps):
                    shutil.rmtree(self.model)
                    shutil.copytree(self.folder / "mixture", self.model)
                    shutil.rmtree(self.folder / "out", ignore_errors=True)
                    self.spoiled("model.layers.0." + name)
                    self.ends(5, ["train", self.recipe(steps=steps)], f"error: model.layers.0.{name}, element 0 of", "is nan",
                              "could not be used", "weights may be damaged", same_disk=False)
                    self.assertFalse((self.folder / "out/adapter").exists())
                    self.assertFalse((self.folder / "out/checkpoints").exists())

    def test_logits_that_are_not_numbers_are_no_result(self):
        self.mixture()
        self.spoiled("model.layers.1.mlp.gate.weight", 3)
        self.loading_refused("error: logits of position 0: not finite: model.layers.1.mlp.gate.weight, element 3 of 128, is nan",
                             "check the model's weights", code=5)
        self.assertFalse((self.folder / "l.npy").exists())

    # mixtures of experts
    MIXTURE = dict(CONFIG, architectures=["Qwen3MoeForCausalLM"], model_type="qwen3_moe", num_experts=4, num_experts_per_tok=2,
                   moe_intermediate_size=16, head_dim=8)

    def mixture(self, **values):
        """A tiny mixture takes the place of the model."""
        (self.folder / "mixture.json").write_text(json.dumps(dict(self.MIXTURE, **values)))
        made = run("init", "--config", self.folder / "mixture.json", "--out", self.folder / "mixture", "--dtype", "f32")
        self.assertEqual(made.code, 0, made.err)
        shutil.rmtree(self.model)
        shutil.copytree(self.folder / "mixture", self.model)

    def test_impossible_numbers_of_experts(self):
        self.mixture()
        config = json.loads((self.model / "config.json").read_text())
        for key, value, reason in (("num_experts", 0, "allowed are 1 to"), ("num_experts", 2**40, "allowed are 1 to"),
                                   ("num_experts_per_tok", 0, "allowed are 1 to"),
                                   ("num_experts_per_tok", 5, "more than there are experts, 4"),
                                   ("moe_intermediate_size", 0, "allowed are 1 to"), ("norm_topk_prob", "yes", "not true or false"),
                                   ("decoder_sparse_step", 0, "allowed are 1 to")):
            with self.subTest(key=key, value=value):
                (self.model / "config.json").write_text(json.dumps(dict(config, **{key: value})))
                self.refused("config.json", key, reason)

    def test_impossible_groups_of_experts(self):
        keys = dict(architectures=["DeepseekV3ForCausalLM"], model_type="deepseek_v3", num_key_value_heads=4, n_routed_experts=4,
                    n_shared_experts=1, n_group=2, topk_group=1, first_k_dense_replace=1, kv_lora_rank=16, q_lora_rank=None,
                    qk_nope_head_dim=8, qk_rope_head_dim=4, v_head_dim=8)
        for key, value, reason in (("n_group", 3, "does not divide the 4 experts"), ("n_group", 0, "allowed are 1 to 4"),
                                   ("topk_group", 3, "allowed are 1 to 2"), ("num_experts_per_tok", 3, "leaves 2 experts"),
                                   ("kv_lora_rank", 0, "allowed are 1 to"), ("qk_rope_head_dim", 3, "must be even"),
                                   ("n_routed_experts", 0, "allowed are 1 to")):
            with self.subTest(key=key, value=value):
                (self.folder / "latent.json").write_text(json.dumps(dict(self.MIXTURE, **keys, **{key: value}) if key not in keys else
                                                                    dict(self.MIXTURE, **dict(keys, **{key: value}))))
                self.ends(3, ["init", "--config", self.folder / "latent.json", "--out", self.folder / "x"], "latent.json", reason)

    def test_experts_that_are_missing_or_of_another_shape(self):
        self.mixture()
        original = self.weights().read_bytes()
        header, data = read_safetensors(self.weights())
        for name in ("model.layers.1.mlp.experts.3.down_proj.weight", "model.layers.1.mlp.gate.weight"):
            renamed = dict(header)
            renamed["other." + name] = renamed.pop(name)
            write_safetensors(self.weights(), renamed, data)
            self.loading_refused(f'has no tensor "{name}"')
        self.weights().write_bytes(original)
        config = json.loads((self.model / "config.json").read_text())
        for key, value, tensor in (("num_experts", 3, "mlp.gate.weight"), ("num_experts", 5, "mlp.gate.weight"),
                                   ("moe_intermediate_size", 24, "mlp.experts.0.gate_proj.weight")):
            (self.model / "config.json").write_text(json.dumps(dict(config, **{key: value})))
            self.loading_refused(self.weights(), tensor, "config.json makes it")

    def test_texts_longer_than_an_indexer_chooses_all_of(self):
        self.mixture(architectures=["DeepseekV32ForCausalLM"], model_type="deepseek_v32", num_key_value_heads=4, n_routed_experts=4,
                     n_shared_experts=1, n_group=1, topk_group=1, first_k_dense_replace=1, kv_lora_rank=16, q_lora_rank=20,
                     qk_nope_head_dim=8, qk_rope_head_dim=8, v_head_dim=8, head_dim=8, index_topk=12, index_head_dim=16, index_n_heads=2)
        program.write_ids(self.folder / "ids.npy", [3] * 12)
        words = ["logits", "--model", self.model, "--ids", self.folder / "ids.npy", "--out", self.folder / "l.npy"]
        self.assertEqual(run(*words).code, 0)
        program.write_ids(self.folder / "ids.npy", [3] * 13)
        self.ends(3, words, "position 12", "an indexer that chooses keys", "chooses all of them only below 12", "shorten it")

    def test_a_block_of_zeros_quantizes(self):
        header, data = read_safetensors(self.weights())
        begin, end = header["model.layers.0.mlp.up_proj.weight"]["data_offsets"]
        write_safetensors(self.weights(), header, data[:begin] + b"\0" * (end - begin) + data[end:])
        out = self.folder / "q"
        self.assertEqual(run("quantize", "--model", self.model, "--out", out).code, 0)
        ids = self.folder / "ids.npy"
        program.write_ids(ids, [3, 4, 5])
        self.assertEqual(run("logits", "--model", out, "--ids", ids, "--out", self.folder / "l.npy").code, 0)
        floats = (self.folder / "l.npy").read_bytes()[128:]
        self.assertTrue(all(v == v for (v,) in struct.iter_unpack("<f", floats)), "not a number")

    # the directory
    def test_shape_against_config(self):
        self.with_config("config.json makes it", intermediate_size=128)

    def test_missing_and_unexpected_tensors(self):
        header, data = read_safetensors(self.weights())
        begin, end = header["lm_head.weight"]["data_offsets"]
        renamed = dict(header)
        renamed["surprise.weight"] = renamed.pop("lm_head.weight")
        write_safetensors(self.weights(), renamed, data)
        self.refused('has no tensor "lm_head.weight"')
        for i in range(7):
            header[f"extra.{i}"] = {"dtype": "U8", "shape": [0], "data_offsets": [len(data), len(data)]}
        header["model.layers.0.self_attn.rotary_emb.inv_freq"] = {"dtype": "U8", "shape": [0], "data_offsets": [len(data)] * 2}
        write_safetensors(self.weights(), header, data)
        self.loading_refused("extra.0, extra.1, extra.2, extra.3, extra.4 and 2 more")

    def index(self, weight_map):
        """Moves the weights into one shard with an index."""
        header, data = read_safetensors(self.weights())
        shard = "model-00001-of-00001.safetensors"
        os.rename(self.weights(), self.model / shard)
        names = {name: shard for name in header if name != "__metadata__"}
        names.update(weight_map)
        (self.model / "model.safetensors.index.json").write_text(
            json.dumps({"weight_map": {k: v for k, v in names.items() if v}}))
        return shard

    def test_missing_shard(self):
        self.index({"lm_head.weight": "model-00002-of-00002.safetensors"})
        self.refused("model-00002-of-00002.safetensors", "is missing")

    def test_index_paths_that_lead_out(self):
        for i, name in enumerate(("../secret.safetensors", "/etc/passwd", "a/../../b", "bad\0name", "")):
            with self.subTest(name=name):
                shutil.rmtree(self.model)
                shutil.copytree(self.shared / "model", self.model)
                shutil.copy(self.weights(), self.folder / "secret.safetensors")
                self.index({"lm_head.weight": name or "x"})
                if not name:
                    path = self.model / "model.safetensors.index.json"
                    path.write_text(path.read_text().replace('"x"', '""'))
                self.refused("index.json", "names a file outside its directory")

    def test_links_are_followed_inside_a_cache_and_nowhere_else(self):
        outside = self.folder / "elsewhere.safetensors"
        os.rename(self.weights(), outside)
        os.symlink(outside, self.weights())
        self.refused(self.weights(), "a link that leads out of its directory")
        cache = self.folder / "models--x"
        snapshot = cache / "snapshots/abc"
        snapshot.mkdir(parents=True)
        (cache / "blobs").mkdir()
        os.rename(outside, cache / "blobs/1")
        os.rename(self.model / "config.json", cache / "blobs/2")
        os.symlink("../../blobs/1", snapshot / "model.safetensors")
        os.symlink("../../blobs/2", snapshot / "config.json")
        self.assertEqual(run("quantize", "--model", snapshot, "--out", self.folder / "q").code, 0)

    def test_index_against_shards(self):
        shard = self.index({"model.ghost": "model-00001-of-00001.safetensors"})
        self.refused(shard, "lacks tensor \"model.ghost\"")
        path = self.model / "model.safetensors.index.json"
        index = json.loads(path.read_text())
        del index["weight_map"]["model.ghost"], index["weight_map"]["lm_head.weight"]
        path.write_text(json.dumps(index))
        self.refused(shard, "lm_head.weight", "which the index does not list")

    # config.json
    def test_sizes_out_of_bounds(self):
        for values in ({"hidden_size": "absent"}, {"hidden_size": -32}, {"hidden_size": 2**40}, {"hidden_size": 32.5},
                       {"num_attention_heads": 5}, {"vocab_size": 0}, {"num_hidden_layers": 10**9},
                       {"num_key_value_heads": 3}, {"max_position_embeddings": 0}, {"head_dim": 10**9},
                       {"rms_norm_eps": -1}, {"rope_theta": 0}):
            with self.subTest(values=values):
                self.with_config("config.json", next(iter(values)).replace("num_key_value_heads", "num_"), **values)

    def test_unknown_kinds_are_named_with_the_known_ones(self):
        self.with_config("RwkvTwoForCausalLM", "llama", architectures=["RwkvTwoForCausalLM"], model_type="rwkv2")
        self.with_config('model_type "rwkv" needs the RWKV time mix, which nibble does not have', model_type="rwkv",
                         architectures=["RwkvForCausalLM"])
        self.with_config("hidden_act", "mish", "silu", hidden_act="mish")
        self.with_config("rope_type", "yarnish", "llama3", rope_scaling={"rope_type": "yarnish", "factor": 2.0})

    def test_tied_head_against_the_weights(self):
        (self.model / "config.json").write_text(json.dumps(dict(CONFIG, tie_word_embeddings=True)))
        self.loading_refused("lm_head.weight", "tie_word_embeddings")

    def test_config_that_is_no_json(self):
        (self.model / "config.json").write_text('{"a": ' + "[" * 5000)
        self.refused("config.json:1:", "nested deeper than")
        (self.model / "config.json").write_text('{\n  "a": 1,,\n}')
        self.refused("config.json:2:10")
        os.remove(self.model / "config.json")
        self.refused("config.json")

    # what is not a file
    def test_fifo_device_or_directory_in_place_of_a_file(self):
        self.weights().unlink()
        os.mkfifo(self.weights())
        self.refused(self.weights(), "is not a regular file", code=4)
        self.weights().unlink()
        self.weights().mkdir()
        self.refused(self.weights(), "is not a regular file", code=4)
        shutil.rmtree(self.model)
        self.refused(self.model, code=4)
        os.mkfifo(self.model)
        self.refused(self.model, code=4)

    def test_odd_and_very_long_names(self):
        for name in ("with space", "тест 日本", "line\nbreak", "n" * 200):
            target = self.folder / name
            shutil.copytree(self.shared / "model", target)
            self.assertEqual(run("quantize", "--model", target, "--out", self.folder / (name[:100] + "-q")).code, 0, name)
        self.ends(4, ["quantize", "--model", self.folder / ("x" * 300), "--out", self.folder / "q"], "x" * 300)

    # adapters
    def adapter(self):
        recipe = self.recipe(steps=1)
        self.assertEqual(run("train", recipe).code, 0)
        return self.folder / "out/adapter"

    def test_damaged_adapters(self):
        adapter = self.adapter()
        config = json.loads((adapter / "adapter_config.json").read_text())

        def refused(*parts, code=3, **values):
            (adapter / "adapter_config.json").write_text(json.dumps(dict(config, **values)))
            self.loading_refused(*parts, adapter=adapter, code=code)

        refused("adapter_config.json", "r ", r=-1)
        refused("adapter_config.json", "peft_type", peft_type="PROMPT_TUNING")
        refused("adapter_model.safetensors", "has rank 2, adapter_config.json says 4", r=4)
        (adapter / "adapter_config.json").write_text("{")
        self.ends(3, ["merge", "--model", self.model, "--adapter", adapter, "--out", self.folder / "m"], "adapter_config.json:1:")
        os.remove(adapter / "adapter_config.json")
        self.ends(3, ["merge", "--model", self.model, "--adapter", adapter, "--out", self.folder / "m"], "adapter_config.json")

    def test_target_modules_that_match_nothing_or_partly(self):
        self.ends(2, ["train", self.recipe(steps=1, adapter={"r": 2, "target_modules": ["quary"]})], "quary")
        ended = run("train", self.recipe(steps=1, adapter={"r": 2, "target_modules": ["q_proj", "quary"]}))
        self.assertIn("quary", ended.err)

    # what exists
    def test_an_existing_target_is_kept_without_force(self):
        self.assertEqual(run("quantize", "--model", self.model, "--out", self.folder / "q").code, 0)
        self.ends(2, ["quantize", "--model", self.model, "--out", self.folder / "q"], self.folder / "q", "exists already", "--force")
        self.assertEqual(run("quantize", "--model", self.model, "--out", self.folder / "q", "--force").code, 0)

    def test_an_unwritable_place(self):
        self.ends(4, ["quantize", "--model", self.model, "--out", "/proc/x/q"], "/proc/x")


if __name__ == "__main__":
    unittest.main(verbosity=2)
