#!/usr/bin/env python3
"""Random Jinja programs, and chat templates with random conversations, through nibble and through Transformers.

    NIBBLE=build/release/bin/nibble python tests/oracles/templates_random.py [--programs N] [--chats N] [--templates DIR ...] [--seed S]

--programs: programs put together at random from Jinja's statements, expressions, filters, tests and Python's methods.
--chats: random conversations (system, tools, calls, thoughts, parts, nulls, odd roles) for every template: those that this script
puts together from what published templates are made of, and the *.jinja files of --templates.
Compared: the text, the spans of {% generation %}, the words of raise_exception, and that every other error is one. A line for
each case that differs; the counts last; exit 0 when nothing differs.
"""
import argparse, datetime, json, logging, os, pathlib, random, subprocess, sys, tempfile, warnings

from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast
from transformers.utils import chat_template_utils

from template_chats import Conversations, chat_templates
from template_programs import Programs

NOW = "2026-03-05T07:08:09"
TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}


class Clock(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return cls.fromisoformat(NOW)


chat_template_utils.datetime = Clock
warnings.simplefilter("ignore")
logging.disable(logging.WARNING)
sys.setrecursionlimit(1000)


def wanted(template, cases):
    """What Transformers makes of each case: {"text", "spans"?}, {"raised"} or {"error"}."""
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE()), chat_template=template, **TOKENS)
    marked = "generation" in template and "endgeneration" in template
    for case in cases:
        rest = {k: case[k] for k in ("tools", "documents", "add_generation_prompt", "continue_final_message") if k in case}
        rest.update(case.get("chat_template_kwargs", {}))
        try:
            answer = {"text": tokenizer.apply_chat_template(case["messages"], tokenize=False, **rest)}
            if marked and not rest.pop("continue_final_message", False):
                messages = [{k: v for k, v in m.items() if v is not None} for m in case["messages"]]
                [again], [answer["spans"]] = chat_template_utils.render_jinja_template(
                    [messages], chat_template=template, return_assistant_tokens_mask=True, **TOKENS, **rest)
                if again != answer["text"]:
                    del answer["spans"]  # reasoning that only apply_chat_template fills in
            answer["text"].encode("utf-8")
            if " at 0x" in answer["text"]:
                answer = None  # an address
        except UnicodeEncodeError:
            answer = None  # half a surrogate pair: no text at all
        except Exception as error:
            raised = type(error).__name__ == "TemplateError"
            answer = {"raised": str(error)} if raised else {"error": f"{type(error).__name__}: {error}"[:160]}
            if " at 0x" in answer.get("raised", ""):
                answer = {"error": answer["raised"]}
        yield answer


def nibble(template, cases):
    with tempfile.TemporaryDirectory() as d:
        folder = pathlib.Path(d)
        (folder / "t.jinja").write_bytes(template.encode("utf-8"))
        (folder / "in.jsonl").write_text("".join(json.dumps(c, ensure_ascii=False) + "\n" for c in cases), encoding="utf-8")
        done = subprocess.run([os.environ["NIBBLE"], "template", "--template", folder / "t.jinja", "--bos-token", TOKENS["bos_token"],
                               "--eos-token", TOKENS["eos_token"], "--now", NOW, "--spans", "--jsonl", folder / "in.jsonl"],
                              capture_output=True)
    if done.returncode in (2, 3) and not done.stdout:  # the template does not compile
        return [{"error": done.stderr.decode("utf-8", "replace").strip()}] * len(cases)
    if done.returncode:
        return [{"crash": f"exit {done.returncode}: {done.stderr.decode('utf-8', 'replace')[-200:]}"}] * len(cases)
    return [json.loads(line) for line in done.stdout.decode("utf-8").split("\n")[:-1]]


def difference(got, want):
    if want is None:
        return None
    if "crash" in got:
        return got["crash"]
    if "text" not in want:
        if "text" in got:
            return f"gives {got['text']!a:.200} instead of {want!a}"
        return None if want.get("raised", "") in got["error"] else f"{got!a} instead of {want!a}"
    if "text" not in got:
        return f"{got['error']!a} instead of {want['text']!a:.200}"
    if got["text"] != want["text"]:
        k = next((k for k, (a, b) in enumerate(zip(got["text"], want["text"])) if a != b), min(len(got["text"]), len(want["text"])))
        return f"at {k}: {got['text'][max(0, k - 20):k + 60]!a} instead of {want['text'][max(0, k - 20):k + 60]!a}"
    if "spans" in want and got["spans"] != [list(s) for s in want["spans"]]:
        return f"spans {got['spans']} instead of {want['spans']}"
    return None


class Report:
    def __init__(self, most):
        self.compared = self.errors = self.differing = 0
        self.most = most

    def compare(self, name, template, cases):
        wants = list(wanted(template, cases))
        for case, got, want in zip(cases, nibble(template, cases), wants, strict=True):
            self.compared += want is not None
            self.errors += want is not None and "text" not in want
            said = difference(got, want)
            if said:
                self.differing += 1
                if self.differing <= self.most:
                    shown = template if len(template) < 400 else f"{len(template)} characters"
                    about = {k: v for k, v in case.items() if k != "chat_template_kwargs"} if len(cases) > 1 else ""
                    print(f"{name}: {said}\n    {shown!a}\n    {about!a:.600}", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--programs", type=int, default=2000)
    parser.add_argument("--chats", type=int, default=40)
    parser.add_argument("--own", type=int, default=40, help="chat templates put together here")
    parser.add_argument("--templates", type=pathlib.Path, nargs="*", default=[])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--most", type=int, default=100, help="differences that are printed")
    args = parser.parse_args()

    programs, chats = Report(args.most), Report(args.most)
    for seed in range(args.seed, args.seed + args.programs):
        made = Programs(random.Random(f"program-{seed}"))
        template, variables = made.program()
        case = {"messages": [{"role": "user", "content": "hi"}], "add_generation_prompt": True, "chat_template_kwargs": variables}
        programs.compare(f"program {seed}", template, [case])
    files = sorted(file for folder in args.templates for file in folder.glob("*.jinja"))
    named = [(file.stem, file.read_bytes().decode("utf-8")) for file in files]
    named += [(f"own {seed}", chat_templates(random.Random(f"chat-{seed}"))) for seed in range(args.seed, args.seed + args.own)]
    for name, template in named:
        made = Conversations(random.Random(f"{name}-{args.seed}"))
        chats.compare(name, template, [made.case() for _ in range(args.chats)])
    for kind, report in (("programs", programs), ("conversations", chats)):
        print(f"{report.compared} {kind} ({report.errors} of them errors in Transformers), {report.differing} differ")
    print(f"{len(named)} chat templates")
    return 1 if programs.differing or chats.differing else 0


if __name__ == "__main__":
    sys.exit(main())
