"""What commands may write and what they may remove: other people's temporary files, inputs, devices, links, and targets
that another command has made meanwhile."""
import fcntl
import json
import os
import shutil
import signal
import stat
import subprocess
import threading
import unittest

import program
from program import run, snapshot

NULL, FULL = (1, 3), (1, 7)


class OutputTest(program.FaultTest):
    def setUp(self):
        super().setUp()
        self.ids = self.folder / "ids.npy"
        program.write_ids(self.ids, [1, 5, 9, 3])

    def trained(self):
        """A run of one step; its adapter."""
        ended = run("train", self.recipe(steps=1), f"output.dir={self.folder / 'run'}")
        self.assertEqual(ended.code, 0, ended.err)
        return self.folder / "run/adapter"

    def does(self, *words, **options):
        ended = run(*words, **options)
        self.assertEqual(ended.code, 0, f"{words}\n{ended.err}")
        return ended

    def killed(self, *words, at, root, calls="write"):
        ended = run(*words, env={"NIBBLE_FAULT_ROOT": str(root), "NIBBLE_FAULT_CALLS": calls, "NIBBLE_FAULT_AT": str(at),
                                 "NIBBLE_FAULT_HOW": "KILL"})
        self.assertEqual(ended.code, -signal.SIGKILL, f"{words}\n{ended.err}")


class StandardOutput(OutputTest):
    """Results that are printed, into a file on a full disk and to a reader that leaves."""

    def printed(self):
        chat, texts = self.folder / "chat.json", self.folder / "texts.jsonl"
        chat.write_text('[{"role": "user", "content": "a"}]')
        texts.write_text('"w1"\n' * 40000)
        program.write_tokenizer(self.model, 60)
        return (["recipes", "schema"], ["recipes", "ls"], ["completion", "bash"], ["inspect", self.model, "--json"],
                ["tokenize", "--model", self.model, "--jsonl", texts], ["template", "--builtin", "plain", "--messages", chat],
                ["eval", "--model", self.model, "--data", self.data()], ["generate", "--model", self.model, "--ids", "1,5"],
                ["plan", self.recipe(), "--max-memory", "1GiB"], ["doctor", "--quick"], ["preview", self.recipe()])

    def into(self, out, words):
        done = subprocess.run([program.PROGRAM, *map(str, words)], stdout=out, stderr=subprocess.PIPE, text=True,
                              env=program.environment())
        return done.returncode, done.stderr

    def test_what_a_full_disk_does_not_take_is_no_success(self):
        with open("/dev/full", "wb") as full:
            for words in self.printed():
                code, errors = self.into(full, words)
                self.assertEqual(code, 4, f"{words}\n{errors}")
                self.assertEqual(errors.splitlines()[-1], "error: standard output: cannot be written; "
                                 "free space where it goes, or write elsewhere", words)

    def test_a_reader_that_leaves_is_no_failure(self):
        for words in self.printed():
            read, write = os.pipe()
            os.close(read)
            code, errors = self.into(write, words)
            os.close(write)
            self.assertEqual(code, 0, f"{words}\n{errors}")
            self.assertNotIn("error", errors, words)

    def test_a_run_whose_result_is_in_files_ends_well(self):
        with open("/dev/full", "wb") as full:
            code, errors = self.into(full, ["train", self.recipe(steps=1)])
        self.assertEqual(code, 0, errors)


class BeforeTheWork(OutputTest):
    """What stands in the way of the result is said before the data that are wrong are found, so before the work."""

    def test_a_file_whose_directory_is_not_there(self):
        base = ["--model", self.model]
        broken = self.folder / "broken.jsonl"
        broken.write_text("{")
        out = self.folder / "none/result"
        for words in (["logprobs", *base, "--data", broken], ["score", *base, "--data", broken],
                      ["logits", *base, "--ids", broken], ["gradients", "--recipe", self.recipe(train_on=broken)]):
            self.ends(4, [*words, "--out", out], f"{out.parent}: cannot be written to: No such file or directory")

    def test_a_directory_that_is_there(self):
        adapter = self.trained()
        out = self.folder / "made"
        out.mkdir()
        (out / "thesis.tex").write_text("the only copy")
        broken = self.folder / "broken.jsonl"
        broken.write_text("{")
        self.ends(2, ["tokenizer", "train", "--data", broken, "--vocab-size", "300", "--out", out], "exists already")
        (self.model / "model.safetensors").write_bytes(b"")
        self.ends(2, ["merge", "--adapter", adapter, "--out", out], "exists already")
        (adapter / "adapter_model.safetensors").write_bytes(b"")
        self.ends(2, ["combine", "--adapter", adapter, "--weight", "1", "--out", out], "exists already")

    def test_a_place_without_permission(self):
        if os.getuid() != 0:
            self.skipTest("giving up permissions needs root")
        broken, closed = self.folder / "broken.jsonl", self.folder / "closed"
        broken.write_text("{")
        closed.mkdir()
        os.chmod(self.folder, 0o755)
        said = f"{closed}: cannot be written to: Permission denied; check the permissions"
        for command in (["train", self.recipe(train_on=broken), f"output.dir={closed / 'run'}"],
                        ["tokenizer", "train", "--data", broken, "--vocab-size", "300", "--out", closed / "t"],
                        ["logprobs", "--model", self.model, "--data", broken, "--out", closed / "l.jsonl"]):
            self.ends(4, command, said, user=65534)


class TemporaryNames(OutputTest):
    """Fault 74."""

    def foreign(self, home):
        """What looks like nibble's temporary names and is not; and a directory that a live process holds."""
        home.mkdir(exist_ok=True)
        for name in [".tmp-thesis", ".tmp-nibble-notes", ".tmp-nibble-12", ".tmp-nibble-12-dx", ".tmp-nibble-1-d2x"]:
            (home / name).mkdir()
            (home / name / "chapter").write_text("the only copy")
        (home / ".tmp-nibble-3-4").mkdir()  # a directory with a file's name
        (home / ".tmp-nibble-3-d4").write_text("and the other way round")
        os.symlink(home / ".tmp-thesis", home / ".tmp-nibble-5-d6")
        live = home / ".tmp-nibble-7-d8"
        (live / "q").mkdir(parents=True)
        lock = open(live / ".nibble.lock", "w")
        self.addCleanup(lock.close)
        fcntl.flock(lock, fcntl.LOCK_EX)
        return snapshot(home)

    def test_foreign_trees_stay_when_a_run_is_refused_and_when_it_trains(self):
        home = self.folder / "home"
        before = self.foreign(home)
        (home / "adapter").mkdir()  # results without a run
        self.ends(2, ["train", self.recipe(), f"output.dir={home}"], home, "holds the result of a run", same_disk=False)
        (home / "adapter").rmdir()
        after = snapshot(home)
        del after[".nibble.lock"]
        self.assertEqual(after, before)
        self.does("train", self.recipe(), f"output.dir={home}")
        after = snapshot(home)
        self.assertEqual({name: after.get(name) for name in before}, before)

    def test_own_leftovers_stay_until_the_run_is_accepted(self):
        home = self.folder / "home"
        leftovers = [home / ".tmp-nibble-1-d0", home / "checkpoints/.tmp-nibble-1-d1"]
        for leftover in leftovers:
            (leftover / "model").mkdir(parents=True)
        (home / ".tmp-nibble-1-2-recipe.json").write_text("{")
        (home / "adapter").mkdir()
        self.ends(2, ["train", self.recipe(), f"output.dir={home}"], "holds the result of a run", same_disk=False)
        self.assertTrue(all(leftover.exists() for leftover in leftovers))
        (home / "adapter").rmdir()
        self.does("train", self.recipe(), f"output.dir={home}")
        self.assertEqual(list(home.rglob(".tmp-*")), [])

    def test_a_live_command_beside_a_run_is_not_disturbed(self):
        home = self.folder / "home"
        home.mkdir()
        child = subprocess.Popen([program.PROGRAM, "quantize", "--model", str(self.model), "--out", str(home / "q")],
                                 stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=program.environment(
            {"NIBBLE_FAULT_ROOT": str(home), "NIBBLE_FAULT_CALLS": "write", "NIBBLE_FAULT_AT": "0", "NIBBLE_FAULT_HOW": "STOP"}))
        self.addCleanup(child.kill)
        _, status = os.waitpid(child.pid, os.WUNTRACED)  # it stands in front of its first write
        self.assertTrue(os.WIFSTOPPED(status))
        self.does("train", self.recipe(), f"output.dir={home}")
        os.kill(child.pid, signal.SIGCONT)
        errors = child.communicate()[1].decode()
        self.assertEqual(child.returncode, 0, errors)
        self.does("inspect", home / "q")
        self.assertEqual(list(home.glob(".tmp-*")), [])

    def test_what_a_killed_command_left_goes_with_the_next_at_the_same_target(self):
        adapter = self.trained()
        home = self.folder / "home"
        home.mkdir()
        base = ["--model", self.model]
        for command in [["quantize", *base], ["merge", *base, "--adapter", adapter], ["export", *base, "--no-tokenizer"],
                        ["export", *base, "--adapter", adapter, "--no-tokenizer"],
                        ["init", "--config", self.model / "config.json"],
                        ["combine", "--adapter", adapter, "--weight", "1"], ["logits", *base, "--ids", self.ids]]:
            for name in ["this", "other"]:
                self.killed(*command, "--out", home / name, at=1, root=home)
            left = len(list(home.glob(".tmp-nibble-*")))
            self.assertGreaterEqual(left, 2, command)
            self.does(*command, "--out", home / "this")
            self.assertEqual(len(list(home.glob(".tmp-nibble-*"))), left // 2, command)
            self.does(*command, "--out", home / "other")
            self.assertEqual(sorted(os.listdir(home)), ["other", "this"], command)
            for name in ["this", "other"]:
                shutil.rmtree(home / name) if (home / name).is_dir() else (home / name).unlink()

    def test_what_a_killed_run_left_among_the_systems_temporary_files_goes_with_the_next(self):
        temporary, home = self.folder / "tmp", self.folder / "home"
        places = {"TMPDIR": str(temporary)}
        (self.folder / "new.json").write_text(json.dumps(dict(program.CONFIG, vocab_size=300)))
        (self.folder / "text.txt").write_text("".join(f"It is {i}, and {i * i} is its square.\n\n" for i in range(60)))
        words = ["train", self.recipe(), f"model.init={self.folder / 'new.json'}", "model.path=null", "adapter=null",
                 f"data.train={self.folder / 'text.txt'}", "data.format=text", f"output.dir={home}"]
        foreign, live = temporary / "nibble-scratch-thesis", temporary / "nibble-scratch-abc123"
        for directory in (foreign, live):
            directory.mkdir(parents=True)
            (directory / "chapter").touch()
        fault = {"NIBBLE_FAULT_ROOT": str(home), "NIBBLE_FAULT_AT": "3", "NIBBLE_FAULT_HOW": "KILL"}
        with open(live / ".nibble.lock", "w") as owner:
            fcntl.flock(owner, fcntl.LOCK_EX)
            self.assertEqual(run(*words, env={**places, **fault}).code, -signal.SIGKILL)
            self.assertEqual(len(list(temporary.iterdir())), 3)
            self.does(*words, env=places)
            self.assertEqual(sorted(temporary.iterdir()), sorted([foreign, live]))
        self.assertEqual(run(*words, "output.resume=never", "output.force=true", env=places).code, 0)
        self.assertEqual(list(temporary.iterdir()), [foreign])
        self.assertTrue((foreign / "chapter").exists())


class Inputs(OutputTest):
    """Fault 75."""

    def refuses(self, *words, out, source):
        for force in [[], ["--force"], ["--force=anything"]]:
            if force and words[0] in ["logits", "gradients", "report", "compare"]:
                continue
            self.ends(2, [*words, "--out", out, *force], f"{out}: ", source, "which is read")

    def test_an_output_in_or_around_an_input_is_refused_by_every_command(self):
        adapter = self.trained()
        nested = self.folder / "nested"
        (nested / "in").mkdir(parents=True)
        model = nested / "in/model"
        shutil.copytree(self.model, model)
        self.does("export", "--model", model, "--no-tokenizer", "--out", nested / "in/m.gguf")
        shutil.copy(model / "config.json", nested / "in/config.json")
        shutil.copytree(adapter, nested / "in/adapter")
        shutil.copy(self.ids, nested / "in/ids.npy")
        corpus = nested / "in/corpus.txt"
        corpus.write_text("a small corpus of a few words\n" * 50)
        os.symlink(nested, self.folder / "link")
        copied, gguf, ids = nested / "in/adapter", nested / "in/m.gguf", nested / "in/ids.npy"
        base = ["--model", model]
        commands = {
            ("quantize", *base): [model],
            ("merge", *base, "--adapter", copied): [copied, model],
            ("combine", "--adapter", copied, "--weight", "1", "--adapter", adapter, "--weight", "1"): [copied],
            ("export", *base, "--adapter", copied, "--no-tokenizer"): [model, copied],
            ("export", *base, "--adapter", copied, "--adapter-only"): [copied],
            ("import", "--model", gguf): [gguf],
            ("init", "--config", nested / "in/config.json"): [nested / "in/config.json"],
            ("tokenizer", "train", "--data", corpus, "--vocab-size", "280"): [corpus],
            ("logits", *base, "--adapter", copied, "--ids", ids): [model, copied, ids],
            ("gradients", *base, "--adapter", copied, "--ids", ids, "--labels", ids): [model, copied, ids],
        }
        for command, inputs in commands.items():
            for source in inputs:
                self.refuses(*command, out=source, source=source)
                if source.is_dir():
                    self.refuses(*command, out=source / "deep/er", source=source)
                    self.refuses(*command, out=source / "../" / source.name / "x", source=source)
            if command[0] not in ["logits", "gradients"]:
                self.refuses(*command, out=nested, source="which is read")
                self.refuses(*command, out=self.folder / "link/in", source="which is read")
        self.refuses("quantize", *base, out=self.folder / "link/in/model/x", source=model)

    def test_all_that_a_recipe_names_is_an_input(self):
        data, held_out = self.data(), self.data(name="held_out.jsonl")
        teacher, template = self.folder / "teacher", self.folder / "t.jinja"
        shutil.copytree(self.model, teacher)
        template.write_text("{{ messages }}")
        recipe = self.recipe(train_on=data, data={"eval": str(held_out), "template": str(template)},
                             objective={"type": "distillation", "teacher_model_name_or_path": str(teacher)})
        cluster = self.folder / "cluster.json"
        cluster.write_text("{}")
        before = snapshot(self.folder)
        for source in [recipe, data, held_out, template, self.model, self.model / "config.json", teacher / "config.json"]:
            self.ends(2, ["gradients", "--recipe", recipe, "--out", source], "which is read")
            self.ends(2, ["plan", recipe, "--measure", source], "which is read")
        self.ends(2, ["plan", recipe, "--cluster", cluster, "--measure", cluster], "which is read")
        self.ends(2, ["train", recipe, f"output.dir={teacher}"], "which is read")
        self.assertEqual(snapshot(self.folder), before)

    def test_an_empty_path_is_named_by_its_flag(self):
        for words in (["doctor", "--dir", ""], ["sagemaker-train", "--base", ""], ["quantize", "--model", self.model, "--out", ""]):
            self.ends(2, words, f"error: {words[-2]}: is empty; see nibble {words[0]} --help")

    def test_a_measurement_that_cannot_be_written_is_one_line(self):
        for file, reason in (("/nonexistent/x", "/nonexistent: cannot be written to"), ("/dev/full", "/dev/full: no space left")):
            ended = self.ends(4, ["plan", self.recipe(), "--measure", file], reason)
            self.assertEqual(ended.err.count("\n"), 1, ended.err)

    def test_the_file_behind_a_link_in_a_model_is_an_input(self):
        blobs = self.folder / "hub/models--a--b/blobs"
        snapshot_of = self.folder / "hub/models--a--b/snapshots/1"
        blobs.mkdir(parents=True)
        snapshot_of.mkdir(parents=True)
        for file in self.model.iterdir():
            shutil.copy(file, blobs / file.name)
            os.symlink(f"../../blobs/{file.name}", snapshot_of / file.name)
        self.refuses("quantize", "--model", snapshot_of, out=blobs, source=snapshot_of)
        self.refuses("logits", "--model", snapshot_of, "--ids", self.ids, out=blobs / "model.safetensors",
                     source="model.safetensors")

    def test_the_same_directory_under_another_mount_is_an_input(self):
        other = self.folder / "other"
        other.mkdir()
        if os.getuid() != 0 or subprocess.run(["mount", "--bind", self.model, other], capture_output=True).returncode != 0:
            self.skipTest("mounting needs root")
        self.addCleanup(subprocess.run, ["umount", "-l", str(other)])
        self.refuses("quantize", "--model", self.model, out=other / "q", source=self.model)

    def test_a_report_does_not_replace_what_it_reads(self):
        self.trained()
        out = self.folder / "run"
        for name in ["metrics.jsonl", "recipe.json", "adapter/adapter_model.safetensors"]:
            self.refuses("report", out, out=out / name, source=out / name.split("/")[0])
            self.refuses("compare", out, out=out / name, source=out / name.split("/")[0])
        self.does("report", out, "--out", out / "again.html")

    def test_a_run_in_or_around_what_it_reads_is_refused(self):
        adapter = self.trained()
        data = self.folder / "texts"
        data.mkdir()
        self.data(name="texts/some.jsonl")
        for out in [self.model, self.model / "run", self.folder, adapter, adapter / "more", data, data / "run"]:
            words = ["train", self.recipe(train_on=data), f"output.dir={out}"]
            self.ends(2, [*words, f"adapter.path={adapter}"], f"{out}: ", "which is read")
            self.ends(2, [*words, f"adapter.path={adapter}", "output.resume=never", "output.force=true"], "which is read")
        self.ends(2, ["train", self.recipe(), f"data.train={data}/*.jsonl", f"output.dir={data}"], data / "some.jsonl")
        self.ends(2, ["validate", self.recipe(train_on=data), f"output.dir={data}"], "which is read")

    def test_force_replaces_what_nibble_wrote_and_asks_for_another_word_else(self):
        adapter = self.trained()
        out = self.folder / "made"
        corpus = self.folder / "corpus.txt"
        corpus.write_text("a small corpus of a few words\n" * 50)
        base = ["--model", self.model]
        gguf = self.folder / "m.gguf"
        self.does("export", *base, "--no-tokenizer", "--out", gguf)
        for command in [["quantize", *base], ["merge", *base, "--adapter", adapter], ["import", "--model", gguf],
                        ["init", "--config", self.model / "config.json"], ["combine", "--adapter", adapter, "--weight", "1"],
                        ["tokenizer", "train", "--data", corpus, "--vocab-size", "280"]]:
            words = [*command, "--out", out]
            out.mkdir()
            (out / "thesis.tex").write_text("the only copy")
            self.ends(2, words, out, "exists already")
            self.ends(2, [*words, "--force"], out, "not a directory that nibble wrote", "--force=anything")
            self.does(*words, "--force=anything")
            self.assertFalse((out / "thesis.tex").exists())
            self.ends(2, words, out, "exists already")
            self.does(*words, "--force")
            (out / "thesis.tex").write_text("the only copy")
            self.ends(2, [*words, "--force"], out, "thesis.tex", "--force=anything")
            shutil.rmtree(out)
        text = self.folder / "thesis.tex"
        text.write_text("the only copy")
        words = ["export", *base, "--no-tokenizer", "--out"]
        self.ends(2, [*words, gguf], gguf, "exists already")
        self.does(*words, gguf, "--force")
        self.ends(2, [*words, text, "--force"], text, "no GGUF file", "--force=anything")
        self.does(*words, text, "--force=anything")
        self.assertEqual(text.read_bytes(), gguf.read_bytes())

    def test_a_run_that_may_replace_keeps_directories_that_are_not_of_a_run(self):
        out = self.folder / "home"
        (out / "adapter").mkdir(parents=True)
        (out / "adapter/thesis.tex").write_text("the only copy")
        self.ends(2, ["train", self.recipe(), f"output.dir={out}", "output.force=true"], out / "adapter",
                  "not a directory that nibble wrote", same_disk=False)
        self.assertEqual((out / "adapter/thesis.tex").read_text(), "the only copy")


class Devices(OutputTest):
    """Fault 76. Devices are made here: a test that goes wrong must not replace those of the machine."""

    def device(self, name, number):
        path = self.folder / name
        try:
            os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(*number))
            os.close(os.open(path, os.O_WRONLY))
        except OSError as error:
            self.skipTest(f"devices cannot be made here: {error}")
        return path

    def files(self):
        """The commands that write a file."""
        adapter = self.trained()
        base = ["--model", self.model]
        return [["logits", *base, "--ids", self.ids], ["gradients", *base, "--ids", self.ids, "--labels", self.ids],
                ["gradients", *base, "--adapter", adapter, "--ids", self.ids, "--labels", self.ids],
                ["export", *base, "--no-tokenizer"], ["export", *base, "--no-tokenizer", "--adapter", adapter],
                ["export", *base, "--adapter", adapter, "--adapter-only"],
                ["report", self.folder / "run"], ["compare", self.folder / "run"]]

    def test_a_device_is_written_to_and_stays(self):
        null, full = self.device("null", NULL), self.device("full", FULL)
        for command in self.files():
            self.does(*command, "--out", null)
            self.assertEqual(os.stat(null).st_rdev, os.makedev(*NULL), command)
            self.ends(4, [*command, "--out", full], full, "no space left")
            self.assertEqual(os.stat(full).st_rdev, os.makedev(*FULL), command)

    def test_a_fifo_gets_the_bytes_of_the_file(self):
        pipe = self.folder / "pipe"
        os.mkfifo(pipe)
        for command in self.files():
            self.does(*command, "--out", self.folder / "file")
            got = []
            reader = threading.Thread(target=lambda: got.append(pipe.read_bytes()), daemon=True)
            reader.start()
            self.does(*command, "--out", pipe)
            reader.join(60)
            self.assertTrue(stat.S_ISFIFO(os.lstat(pipe).st_mode), command)
            self.assertEqual(got, [(self.folder / "file").read_bytes()], command)
            (self.folder / "file").unlink()

    def test_a_link_stays_and_its_target_is_written(self):
        (self.folder / "place").mkdir()
        link, target = self.folder / "link", self.folder / "place/target"
        os.symlink("place/target", link)
        for command in self.files():
            self.does(*command, "--out", link)
            self.assertTrue(link.is_symlink(), command)
            self.assertEqual(os.listdir(self.folder / "place"), ["target"], command)
            target.unlink()
        for command in [["quantize", "--model", self.model], ["init", "--config", self.model / "config.json"]]:
            self.does(*command, "--out", link)
            self.does(*command, "--out", link, "--force")
            self.assertTrue(link.is_symlink(), command)
            self.assertTrue((target / "config.json").exists())
            self.assertEqual(os.listdir(self.folder / "place"), ["target"], command)
            shutil.rmtree(target)

    def test_directories_do_not_take_the_place_of_devices(self):
        null = self.device("null", NULL)
        for force in ["--force", "--force=anything"]:
            self.ends(2, ["quantize", "--model", self.model, "--out", null, force], null, "is no directory")

    def test_a_directory_is_no_file(self):
        (self.folder / "place").mkdir()
        self.ends(4, ["logits", "--model", self.model, "--ids", self.ids, "--out", self.folder / "place"], "Is a directory")


class AtOnce(OutputTest):
    """Commands that end at the same moment: one of them has made the target."""

    def at_once(self, words, count=3):
        """Runs `count` of them, each stopped in front of its rename until all stand there."""
        environment = program.environment({"NIBBLE_FAULT_ROOT": str(self.folder / "made"), "NIBBLE_FAULT_CALLS": "rename",
                                           "NIBBLE_FAULT_AT": "0", "NIBBLE_FAULT_HOW": "STOP"})
        children = [subprocess.Popen([program.PROGRAM, *map(str, words)], stdout=subprocess.DEVNULL,
                                     stderr=subprocess.PIPE, env=environment) for _ in range(count)]
        for child in children:
            self.addCleanup(child.kill)
            _, status = os.waitpid(child.pid, os.WUNTRACED)
            self.assertTrue(os.WIFSTOPPED(status))
        ended = []
        for child in children:
            os.kill(child.pid, signal.SIGCONT)
            errors = child.communicate()[1].decode()
            ended.append((child.returncode, errors))
        return ended

    def test_one_wins_and_the_others_say_that_the_target_exists(self):
        adapter = self.trained()
        base = ["--model", self.model]
        for command in [["export", *base, "--no-tokenizer"], ["quantize", *base], ["init", "--config", self.model / "config.json"],
                        ["combine", "--adapter", adapter, "--weight", "1"]]:
            ended = self.at_once([*command, "--out", self.folder / "made"])
            self.assertEqual(sorted(code for code, _ in ended), [0, 2, 2], ended)
            for code, errors in ended:
                self.assertIn("exists already" if code else "", errors)
            self.assertEqual(list(self.folder.glob(".tmp-*")), [])
            made = self.folder / "made"
            shutil.rmtree(made) if made.is_dir() else made.unlink()


if __name__ == "__main__":
    unittest.main(verbosity=2)
