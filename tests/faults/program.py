"""The program under test, tiny models and data made on the spot, and what every fault must leave: one line on stderr,
the right exit code, and the disk as it was."""
import contextlib
import hashlib
import json
import mmap
import os
import pathlib
import shutil
import struct
import subprocess
import tempfile
import time
import unittest

PROGRAM = os.environ.get("NIBBLE", "build/release/bin/nibble")
FAILING_IO = os.environ.get("NIBBLE_FAILING_IO", "")

CONFIG = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 32, "intermediate_size": 64,
          "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64,
          "rms_norm_eps": 1e-5, "tie_word_embeddings": False, "vocab_size": 64, "torch_dtype": "float32",
          "hidden_act": "silu", "bos_token_id": 1, "eos_token_id": 2}

if os.environ.get("TMPDIR") == "/dev/shm":  # tests/run.sh; faults come to disks, and one hides what lies there
    del os.environ["TMPDIR"]
# Built with AddressSanitizer: it reserves more address space than any limit allows, and catches SIGSEGV.
with open(PROGRAM, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
    WITH_ADDRESS_SANITIZER = content.find(b"__asan_init") >= 0
# Where the program remembers hashes of files: what other runs on this machine left decides nothing.
CACHE = tempfile.TemporaryDirectory(prefix="nibble-cache-")
os.environ["XDG_CACHE_HOME"] = CACHE.name
# Seconds after which what is waited for is taken not to come. Tests wait for states; none of them says how long a thing may take.
LIMIT = 600
# A run that only a signal, a fault or `train.steps` of a later command ends: a machine that is fast does not end it.
ENDLESS = {"steps": 10**9, "optimizer": {"schedule": "constant"}}


class Ended:
    def __init__(self, code, out, err):
        self.code, self.out, self.err = code, out, err


def environment(extra=None):
    variables = dict(os.environ, OMP_NUM_THREADS="1")
    variables.update(extra or {})
    if "NIBBLE_FAULT_ROOT" in variables:
        variables["LD_PRELOAD"] = " ".join([FAILING_IO, *variables.get("LD_PRELOAD", "").split()])
        variables["ASAN_OPTIONS"] = variables.get("ASAN_OPTIONS", "") + ":verify_asan_link_order=0"
    return variables


def run(*words, env=None, timeout=LIMIT, **options):
    done = subprocess.run([PROGRAM, *map(str, words)], capture_output=True, env=environment(env),
                          timeout=timeout, **options)
    return Ended(done.returncode, done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace"))


@contextlib.contextmanager
def memory_limit(test, limit):
    """A control group of `limit` bytes; yields what subprocess needs to start a program in it. Skips where it cannot be made."""
    whole = pathlib.Path("/sys/fs/cgroup")
    old = (whole / "memory/memory.limit_in_bytes").exists()
    group = (whole / "memory" if old else whole) / f"nibble-test-{os.getpid()}"
    try:
        group.mkdir()
        (group / ("memory.limit_in_bytes" if old else "memory.max")).write_text(str(limit))
        (group / ("memory.swappiness" if old else "memory.swap.max")).write_text("0")
    except OSError as error:
        if group.exists():
            group.rmdir()
        test.skipTest(f"a control group of limited memory cannot be made here: {error}")
    try:
        yield {"preexec_fn": lambda: (group / "cgroup.procs").write_text(str(os.getpid()))}
    finally:
        for _ in range(100):  # until the last process of it is gone
            try:
                group.rmdir()
                break
            except OSError:
                time.sleep(0.1)


def snapshot(folder):
    """Every path under `folder` with what it is and holds."""
    found = {}
    for path in sorted(pathlib.Path(folder).rglob("*")):
        name = str(path.relative_to(folder))
        if path.name == ".nibble.lock":
            found[name] = "lock"  # the line in it says who had it last
        elif path.is_symlink():
            found[name] = "-> " + os.readlink(path)
        elif path.is_file():
            found[name] = hashlib.sha256(path.read_bytes()).hexdigest()
        else:
            found[name] = "directory" if path.is_dir() else "other"
    return found


def read_safetensors(path):
    blob = pathlib.Path(path).read_bytes()
    (length,) = struct.unpack("<Q", blob[:8])
    return json.loads(blob[8:8 + length]), blob[8 + length:]


def write_safetensors(path, header, data, length=None):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    pathlib.Path(path).write_bytes(struct.pack("<Q", len(text) if length is None else length) + text + data)


def write_tokenizer(folder, words, added=()):
    """w0, w1, ... separated by blanks, and what stands for a token itself behind them."""
    tokens = [{"id": words + i, "content": token, "single_word": False, "lstrip": False, "rstrip": False,
               "normalized": False, "special": True} for i, token in enumerate(added)]
    (folder / "tokenizer.json").write_text(json.dumps(
        {"version": "1.0", "truncation": None, "padding": None, "added_tokens": tokens, "normalizer": None,
         "pre_tokenizer": {"type": "WhitespaceSplit"}, "post_processor": None, "decoder": None,
         "model": {"type": "WordLevel", "vocab": {f"w{i}": i for i in range(words)}, "unk_token": "w0"}}))
    (folder / "tokenizer_config.json").write_text(json.dumps(
        {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "w0"}))


def write_ids(path, ids):
    """An int64 .npy array of one row."""
    header = "{'descr': '<i8', 'fortran_order': False, 'shape': (1, %d), }" % len(ids)
    header += " " * (63 - (10 + len(header)) % 64) + "\n"
    with open(path, "wb") as file:
        file.write(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode())
        file.write(struct.pack("<%dq" % len(ids), *ids))


def without_clock(lines):
    """Lines of metrics.jsonl or samples.jsonl as objects, without what the clock and the process say."""
    clock = ("tokens_per_second", "seconds", "step_time", "eps")
    return [{name: value for name, value in json.loads(line).items() if name not in clock and "memory" not in name}
            for line in lines.splitlines()]


class FaultTest(unittest.TestCase):
    """A folder of its own for each test; `model` is a tiny Llama, made once."""

    @classmethod
    def setUpClass(cls):
        cls.shared = pathlib.Path(tempfile.mkdtemp(prefix="nibble-faults-"))
        (cls.shared / "config.json").write_text(json.dumps(CONFIG))
        made = run("init", "--config", cls.shared / "config.json", "--out", cls.shared / "model", "--dtype", "f32")
        if made.code != 0:
            raise RuntimeError(made.err)

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.shared, ignore_errors=True)

    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="nibble-faults-"))
        self.model = self.folder / "model"
        shutil.copytree(self.shared / "model", self.model)

    def tearDown(self):
        subprocess.run(["chmod", "-R", "u+rwX", str(self.folder)], check=False)
        shutil.rmtree(self.folder, ignore_errors=True)

    def ends(self, code, words, *parts, env=None, same_disk=True, **options):
        """Runs the program; its last line must be "error: ..." with all of `parts` in it."""
        before = snapshot(self.folder)
        ended = run(*words, env=env, **options)
        shown = f"{words}\n{ended.err}"
        self.assertEqual(ended.code, code, shown)
        lines = ended.err.rstrip("\n").split("\n")
        self.assertTrue(lines[-1].startswith("error: "), shown)
        self.assertEqual(sum(line.startswith("error: ") for line in lines), 1, shown)
        for part in parts:
            self.assertIn(str(part), lines[-1], shown)
        if same_disk:
            self.assertEqual(snapshot(self.folder), before, shown)
        return ended

    # A run on token ids: no tokenizer needed.
    def data(self, name="data.jsonl", rows=12, length=16, vocab=60, shortest=None):
        """shortest: lengths vary from it to `length`, which a row in eight has."""
        path = self.folder / name
        with open(path, "w") as file:
            for i in range(rows):
                varied = length if shortest is None or i % 8 == 0 else shortest + 7919 * i % (length - shortest)
                ids = [3 + (7 * i + t * t) % (vocab - 3) for t in range(varied)]
                file.write(json.dumps({"input_ids": ids, "labels": ids}) + "\n")
        return path

    def recipe(self, steps=6, train_on=None, **sections):
        """recipe.json for a LoRA run; sections are merged in."""
        recipe = {"model": {"path": str(self.model), "compute_dtype": "f32"},
                  "adapter": {"r": 2, "lora_alpha": 4},
                  "data": {"train": str(train_on or self.data()), "format": "tokens", "pack": False, "max_length": 64},
                  "train": {"steps": steps, "microbatch_size": 2, "save_every": 1, "threads": 1},
                  "optimizer": {"lr": 1e-3},
                  "output": {"dir": str(self.folder / "out")}}
        for name, section in sections.items():
            recipe.setdefault(name, {}).update(section)
        path = self.folder / "recipe.json"
        path.write_text(json.dumps(recipe))
        return path

    def large_recipe(self, **sections):
        """A run of one step that trains all of 8 million weights: 130 MB, and some again while it loads."""
        config = dict(CONFIG, hidden_size=512, intermediate_size=2048, num_attention_heads=8)
        (self.folder / "big.json").write_text(json.dumps(config))
        made = run("init", "--config", self.folder / "big.json", "--out", self.folder / "big")
        self.assertEqual(made.code, 0, made.err)
        recipe = self.recipe(steps=1, model={"path": str(self.folder / "big")}, **sections)
        whole = json.loads(recipe.read_text())
        del whole["adapter"]  # every weight in f32, its gradient and its moments
        recipe.write_text(json.dumps(whole))
        return recipe

    def metrics(self, out=None):
        text = (pathlib.Path(out or self.folder / "out") / "metrics.jsonl").read_text()
        return [json.loads(line) for line in text.splitlines()]

    def result(self, out=None):
        """Bits of the adapter, or of the model, and of the losses of a finished run."""
        folder = pathlib.Path(out or self.folder / "out")
        adapter = folder / "adapter/adapter_model.safetensors"
        return ((adapter if adapter.exists() else folder / "model/model.safetensors").read_bytes(),
                [line["loss"] for line in self.metrics(folder)])

    def steps(self, out):
        return without_clock((self.folder / out / "metrics.jsonl").read_text())

    def bits(self, out):
        """What a finished run leaves, without what the clock and the process say."""
        results = ("adapter", "value_adapter", "model", "rollouts", "samples.jsonl")
        left = {path: what for path, what in snapshot(out).items() if path.split("/")[0] in results}
        if "samples.jsonl" in left:
            left["samples.jsonl"] = without_clock((self.folder / out / "samples.jsonl").read_text())
        return left, self.steps(out)

    def hasty(self):
        """Variables for ranks that wait in vain no longer than it takes to look at the clock, and the file that begins it."""
        haste = self.folder / "haste"
        haste.unlink(missing_ok=True)
        return {"NIBBLE_FAULT_ROOT": str(self.folder), "NIBBLE_FAULT_HASTE": str(haste)}, haste

    def wait_until(self, condition):
        end = time.monotonic() + LIMIT
        while not condition():
            self.assertLess(time.monotonic(), end, "what is waited for does not come")
            time.sleep(0.01)

    def checkpoints(self, out=None):
        folder = pathlib.Path(out or self.folder / "out") / "checkpoints"
        return sorted((int(p.name[5:]) for p in folder.glob("step-*")), key=int) if folder.is_dir() else []


class JobTest(FaultTest):
    """Runs of several ranks: `nibble launch` and the processes it starts."""

    def launch(self, ranks, *words, threads=1, env=None, **options):
        """Starts a job that is watched from outside; its messages go to the file `stderr`."""
        file = open(self.folder / "stderr", "wb")
        self.addCleanup(file.close)
        self.addCleanup(self.end_processes)
        command = [PROGRAM, "launch", "-n", str(ranks), "--threads", str(threads), "--", *map(str, words)]
        return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=file, env=environment(env), **options)

    def errors(self):
        return (self.folder / "stderr").read_text(errors="replace")

    def lines(self):
        try:  # a run that starts afresh removes the file of the one before
            return (self.folder / "out/metrics.jsonl").read_text().splitlines()
        except FileNotFoundError:
            return []

    def processes(self):
        """Process id -> command line of everything that runs for this test."""
        found = {}
        for entry in pathlib.Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                words = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
                dead = (entry / "stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
            except OSError:
                continue
            if not dead and any(str(self.folder) in word for word in words):
                found[int(entry.name)] = words
        return found

    def ranks(self):
        """Process ids of the ranks, lowest rank first."""
        found = []
        for process, words in self.processes().items():
            if words[0] == "mpirun" or "launch" in words:
                continue
            try:
                variables = pathlib.Path(f"/proc/{process}/environ").read_bytes().split(b"\0")
            except OSError:
                continue
            rank = [int(v.split(b"=")[1]) for v in variables if v.startswith(b"OMPI_COMM_WORLD_RANK=")]
            found += [(rank[0], process)] if rank else []
        return [process for _, process in sorted(found)]

    def ended(self, job, what):
        """The exit code of a job; a failure that tells what is left of it when it does not end."""
        try:
            return job.wait(LIMIT)
        except subprocess.TimeoutExpired:
            left = {process: (words[0], pathlib.Path(f"/proc/{process}/wchan").read_text())
                    for process, words in self.processes().items()}
            self.fail(f"{what}: still there after {LIMIT} s: {left}; it said: {self.errors()}")

    def end_processes(self):
        for process in self.processes():
            try:
                os.kill(process, 9)
            except ProcessLookupError:
                pass
