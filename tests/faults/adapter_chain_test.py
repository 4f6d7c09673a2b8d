"""An adapter that was trained with a chat template and with tokens that its base does not have: every command takes it.
With ORACLE_PY, a Python that has what tests/oracles/requirements.txt lists, PEFT and Transformers too."""
import json
import math
import os
import pathlib
import re
import shutil
import struct
import subprocess
import unittest

import program
from program import run

WORDS = 64  # of the model's vocabulary; behind it come the marks of chatml
MARKS = ["<|im_start|>", "<|im_end|>"]


def numbers(path):
    """Shape and values of a float32 .npy file."""
    blob = pathlib.Path(path).read_bytes()
    (length,) = struct.unpack("<H", blob[8:10])
    shape = [int(n) for n in re.search(rb"\(([^)]*)\)", blob[10:10 + length])[1].split(b",") if n.strip()]
    return shape, struct.unpack(f"<{math.prod(shape)}f", blob[10 + length:])


class Chain(program.FaultTest):
    def setUp(self):
        super().setUp()
        self.tokenizer(self.model)
        self.adapter = self.folder / "out/adapter"

    def tokenizer(self, folder, marks=MARKS):
        program.write_tokenizer(folder, WORDS, marks)

    def chats(self):
        path = self.folder / "chats.jsonl"
        with open(path, "w") as file:
            for i in range(8):
                turns = [{"role": "user", "content": f"w{i + 1} w{i + 2}"},
                         {"role": "assistant", "content": f"w{2 * i + 3} w{i + 20}"}]
                file.write(json.dumps({"messages": turns}) + "\n")
        return path

    def trained(self, adapter=None, **data):
        recipe = self.recipe(steps=3, **({"adapter": adapter} if adapter else {}), data={"train": str(self.chats()), "format": "chat", "template": "chatml", **data},
                             optimizer={"lr": 1e-2})
        ended = run("train", recipe)
        self.assertEqual(ended.code, 0, ended.err)
        return ended

    def done(self, *words, **options):
        ended = run(*words, **options)
        self.assertEqual(ended.code, 0, f"{words}\n{ended.err}")
        return ended

    def loss(self, *words, data=None):
        return json.loads(self.done("eval", *words, "--data", data or self.chats(), "--compute-dtype", "f32",
                                    "--json").out)["loss"]

    def logits(self, *words):
        out = self.folder / "logits.npy"
        self.done("logits", *words, "--ids", f"1,{WORDS},5,{WORDS + 1}", "--compute-dtype", "f32", "--out", out)
        shape, values = numbers(out)
        self.assertEqual(shape, [1, 4, WORDS + len(MARKS)])
        return values

    def near(self, ours, theirs):
        self.assertEqual(len(ours), len(theirs))
        self.assertLess(max(abs(a - b) for a, b in zip(ours, theirs)), 1e-4)

    def test_added_tokens_go_through_every_command(self):
        self.trained()
        self.goes_through_every_command()

    def test_added_tokens_that_the_recipe_names_go_through_every_command(self):
        named = {"r": 2, "trainable_token_indices": [WORDS, WORDS + 1]}
        self.trained(adapter=named)
        self.goes_through_every_command()
        behind = dict(named, trainable_token_indices=[WORDS + 2])
        for command in ("validate", "plan", "train"):
            ended = run(command, self.recipe(steps=3, adapter=behind))
            self.assertEqual(ended.code, 2, command)
            self.assertIn(f"has {WORDS + 2}, outside the vocabulary of {WORDS + 2};", ended.err)

    def goes_through_every_command(self):
        both = ["--model", self.model, "--adapter", self.adapter]
        loss, logits = self.loss(*both, "--template", "chatml"), self.logits(*both)
        self.assertLess(loss, math.log(WORDS) + 1)
        self.assertTrue(json.loads(self.done("generate", *both, "--prompt", f"{MARKS[0]} w5", "--max-new-tokens", 4,
                                             "--json").out)["ids"])
        self.done("chat", *both, "--template", "chatml", "--max-new-tokens", 4, input=b"w1 w2\n")
        program.write_ids(self.folder / "ids.npy", [1, WORDS, 5, WORDS + 1])
        self.done("gradients", *both, "--ids", self.folder / "ids.npy", "--labels", self.folder / "ids.npy", "--out",
                  self.folder / "gradients.safetensors")
        merged = self.folder / "merged"
        self.done("merge", "--adapter", self.adapter, "--out", merged, "--dtype", "f32")
        self.near(self.logits("--model", merged), logits)
        self.assertAlmostEqual(self.loss("--model", merged, "--template", "chatml"), loss, places=4)
        self.done("export", *both, "--out", self.folder / "m.gguf", "--type", "f32", "--no-tokenizer")
        self.done("import", "--model", self.folder / "m.gguf", "--out", self.folder / "back")
        self.assertEqual(json.loads((self.folder / "back/config.json").read_text())["vocab_size"], WORDS + len(MARKS))

    def test_the_template_of_the_training_is_kept_and_used(self):
        self.trained()
        both = ["--model", self.model, "--adapter", self.adapter]
        self.assertTrue((self.adapter / "tokenizer.json").exists())
        self.assertIn("<|im_start|>user", (self.adapter / "chat_template.jinja").read_text())
        self.assertEqual(self.loss(*both), self.loss(*both, "--template", "chatml"))
        pairs = self.folder / "pairs.jsonl"  # which only a template that was asked for makes a conversation
        pairs.write_text(json.dumps({"prompt": "w1 w2", "completion": "w3 w20"}) + "\n")
        self.assertEqual(self.loss(*both, data=pairs), self.loss(*both, "--template", "chatml", data=pairs))
        self.assertNotIn("another chat template", self.done("eval", *both, "--data", self.chats()).err)
        (self.model / "chat_template.jinja").write_text("{{ messages[0].content }}")
        self.assertNotIn("another chat template", self.done("generate", *both, "--prompt", "w1").err)
        for words, given in ((["eval", "--data", self.chats()], b""), (["chat", "--max-new-tokens", 2], b"w1\n")):
            ended = self.done(words[0], *both, *words[1:], input=given)
            self.assertIn("note: the adapter was trained with another chat template than the model's", ended.err)
            self.assertNotIn("another chat template", self.done(words[0], *both, "--template", "chatml", *words[1:],
                                                                input=given).err)
        merged = self.folder / "merged"
        ended = self.done("merge", *both, "--out", merged, "--dtype", "f32")
        self.assertIn("chat template", ended.err)
        self.assertEqual((merged / "chat_template.jinja").read_text(), (self.adapter / "chat_template.jinja").read_text())
        self.assertAlmostEqual(self.loss("--model", merged), self.loss(*both), places=4)

    def test_a_recipe_that_continues_it_takes_its_tokenizer(self):
        words = self.folder / "words"
        words.mkdir()
        self.tokenizer(words)
        self.tokenizer(self.model, marks=[])
        first = self.recipe(steps=3, data={"train": str(self.chats()), "format": "chat", "template": "chatml"},
                            optimizer={"lr": 1e-2})
        self.done("train", first, f"model.tokenizer={words}")
        shutil.move(self.adapter, self.folder / "first")
        shutil.rmtree(self.folder / "out")
        note = "note: the adapter has another tokenizer than the model: the adapter's is used\n"
        chats = self.chats()
        recipe = self.recipe(steps=4, adapter={"path": str(self.folder / "first")},
                             data={"train": str(chats), "format": "chat"}, optimizer={"schedule": "constant"})
        for command in ("validate", "preview", "plan"):
            ended = self.done(command, recipe)
            self.assertEqual(ended.err.count(note), 1, f"{command}: {ended.err}")
        self.assertIn(MARKS[0], self.done("preview", recipe).out)
        named = f"model.tokenizer={self.folder / 'first'}"
        self.assertNotIn(note, self.done("train", recipe, named, f"output.dir={self.folder / 'named'}").err)
        self.assertEqual(self.done("train", recipe, "train.steps=2").err.count(note), 1)
        self.done("train", recipe)  # goes on
        self.assertEqual((self.adapter / "tokenizer.json").read_bytes(), (words / "tokenizer.json").read_bytes())
        self.assertEqual(self.result(), self.result(self.folder / "named"))
        # Another tokenizer there is another run.
        self.tokenizer(self.folder / "first", marks=[*MARKS[::-1]])
        ended = run("train", recipe, "train.steps=5")
        self.assertEqual(ended.code, 2, ended.err)
        self.assertIn("tokenizer.json of tokenizer has other content", ended.err)

    def test_a_recipe_that_continues_it_takes_its_template(self):
        (self.model / "chat_template.jinja").write_text("{{ messages[0].content }} w1 {{ messages[1].content }}")
        self.trained()
        first = self.folder / "first"
        shutil.move(self.adapter, first)
        shutil.rmtree(self.folder / "out")
        note = "note: the adapter was trained with another chat template than the model's: the adapter's is used\n"
        recipe = self.recipe(steps=4, adapter={"path": str(first)}, data={"train": str(self.chats()), "format": "chat"},
                             optimizer={"schedule": "constant"})
        for command in ("validate", "preview", "plan"):
            ended = self.done(command, recipe)
            self.assertEqual(ended.err.count(note), 1, f"{command}: {ended.err}")
        self.assertIn(MARKS[0], self.done("preview", recipe).out)
        named = ["data.template=chatml", f"output.dir={self.folder / 'named'}"]
        self.assertNotIn(note, self.done("train", recipe, *named).err)
        self.assertEqual(self.done("train", recipe, "train.steps=2").err.count(note), 1)
        self.done("train", recipe)  # goes on
        self.assertEqual(self.result(), self.result(self.folder / "named"))
        kept = (self.adapter / "chat_template.jinja").read_text()
        self.assertEqual(kept, (first / "chat_template.jinja").read_text())
        (first / "chat_template.jinja").write_text(kept + " ")
        ended = run("train", recipe, "train.steps=5")  # is another run
        self.assertEqual(ended.code, 2, ended.err)

    def test_the_models_own_template_is_kept_without_a_word(self):
        (self.model / "chat_template.jinja").write_text(
            "{% for m in messages %}{{ '<|im_start|> ' + m.content + ' <|im_end|> ' }}{% endfor %}"
            "{% if add_generation_prompt %}{{ '<|im_start|> ' }}{% endif %}")
        self.trained(template=None)
        self.assertEqual((self.adapter / "chat_template.jinja").read_text(), (self.model / "chat_template.jinja").read_text())
        ended = self.done("eval", "--model", self.model, "--adapter", self.adapter, "--data", self.chats())
        self.assertNotIn("note: the adapter", ended.err)

    def test_each_mark_that_is_no_token_is_warned_of(self):
        self.tokenizer(self.model, marks=["<|im_start|>"])
        ended = self.trained()
        self.assertIn("warning: the tokenizer has no token <|im_end|>, which the template chatml writes", ended.err)
        self.assertNotIn("no token <|im_start|>", ended.err)

    def test_the_base_of_an_adapter_is_found_from_anywhere(self):
        recipe = json.loads(self.recipe(steps=1).read_text())
        recipe["model"]["path"] = "model"
        (self.folder / "recipe.json").write_text(json.dumps(recipe))
        self.done("train", "recipe.json", cwd=self.folder)
        elsewhere = self.folder / "elsewhere"
        elsewhere.mkdir()
        self.done("merge", "--adapter", self.adapter, "--out", "merged", cwd=elsewhere)
        config = self.adapter / "adapter_config.json"
        said = json.loads(config.read_text())
        config.write_text(json.dumps(dict(said, base_model_name_or_path="models/none")))
        self.ends(4, ["merge", "--adapter", self.adapter, "--out", self.folder / "m"], config,
                  "names the base models/none, which is no directory here; give the directory of the base with --model")

    def test_the_adapter_names_modules_as_peft_does_where_files_call_them_otherwise(self):
        neox = self.folder / "neox"
        (self.folder / "neox.json").write_text(json.dumps(
            {"architectures": ["GPTNeoXForCausalLM"], "model_type": "gpt_neox", "hidden_size": 32, "rotary_pct": 0.5,
             "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4, "vocab_size": 70,
             "max_position_embeddings": 64, "tie_word_embeddings": False}))
        self.done("init", "--config", self.folder / "neox.json", "--out", neox)
        self.done("train", self.recipe(steps=1, model={"path": str(neox)}, adapter={
            "target_modules": ["query_key_value"], "modules_to_save": ["lm_head"]}))
        config = json.loads((self.adapter / "adapter_config.json").read_text())
        self.assertEqual(config["modules_to_save"], ["lm_head"])  # embed_out in the files of GPT-NeoX
        head = json.loads(self.done("inspect", self.adapter, "--json").out)
        self.assertIn("base_model.model.lm_head.weight", json.dumps(head))
        self.done("generate", "--model", neox, "--adapter", self.adapter, "--ids", "1,2", "--max-new-tokens", "2")

    @unittest.skipUnless("ORACLE_PY" in os.environ, "ORACLE_PY is not set")
    def test_the_printed_lines_load_it_in_peft(self):
        for adapter in (None, {"r": 2, "trainable_token_indices": [WORDS, WORDS + 1]}):
            shutil.rmtree(self.folder / "out", ignore_errors=True)
            self.trained(adapter=adapter)
            self.opens_in_peft()

    def opens_in_peft(self):
        card = (self.adapter / "README.md").read_text()
        lines = re.search("```python\n(.*?)```", card, re.S)[1].replace("path/to/this/directory", str(self.adapter))
        chat = [{"role": "system", "content": "w9"}, {"role": "user", "content": "w1 w2"}]
        lines += f"""
import json, torch
from transformers import AutoTokenizer
with torch.no_grad():
    logits = model.eval()(torch.tensor([[1, {WORDS}, 5, {WORDS + 1}]])).logits.float().flatten().tolist()
text = AutoTokenizer.from_pretrained({str(self.adapter)!r}).apply_chat_template(
    {chat!r}, tokenize=False, add_generation_prompt=True)
print(json.dumps([logits, text]))
"""
        done = subprocess.run([os.environ["ORACLE_PY"], "-c", lines], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        theirs, text = json.loads(done.stdout.splitlines()[-1])
        self.near(self.logits("--model", self.model, "--adapter", self.adapter), theirs)
        messages = self.folder / "messages.json"
        messages.write_text(json.dumps(chat))
        ours = self.done("template", "--builtin", "chatml", "--messages", messages, "--add-generation-prompt").out
        self.assertEqual(ours.rstrip("\n"), text.rstrip("\n"))


if __name__ == "__main__":
    unittest.main(verbosity=2)
