"""What Transformers renders from chat templates of our own and from random Jinja programs: tests/data/templates.

    python templates_own.py DATA

DATA/templates/*.jinja are written by hand: the forms that published templates have. cases.jsonl.gz: {"template", "request"}, the latter as text (whole numbers have any size), and what
came of it: "text" (with "spans" where the template marks them), "raised" (the words given to raise_exception) or "error" (Python's
words; that there is one is what counts). programs.jsonl.gz: the same with the program itself as "template". The clock stands at NOW of
templates_random.py.
"""
import gzip, json, random, sys
from pathlib import Path

from template_chats import Conversations, chat_templates
from template_programs import Programs
from templates_random import wanted

PROGRAMS, BUILT, CHATS = 240, 10, 24
ASK, ANSWER = dict(role="user", content="Hi"), dict(role="assistant", content=" Hello! ")
PLAIN = [[ASK], [ASK, ANSWER], [dict(role="system", content="Be brief.\n"), ASK, ANSWER, dict(role="user", content="Bye")],
         [ANSWER, ASK], [ASK, ASK], [dict(role="user", content=[dict(type="text", text=" Ä "), dict(type="image")])],
         [ASK, dict(role="assistant", content="<think>\nwhy\n</think>\n\nBecause.")],
         [ASK, dict(role="assistant", content="Because.", reasoning_content="why")]]


def answered(name, template, requests):
    """Lines of cases.jsonl.gz; None for what cannot be written down."""
    return [dict(template=name, request=json.dumps(request, ensure_ascii=False), **answer)
            for request, answer in zip(requests, wanted(template, requests), strict=True) if answer is not None]


def chats(name, template):
    made = Conversations(random.Random(name))
    requests = [dict(messages=messages, add_generation_prompt=prompt) for messages in PLAIN for prompt in (False, True)]
    return answered(name, template, requests + [made.case() for _ in range(CHATS)])


def shares(lines):
    return sum("text" in line for line in lines), len(lines)


def write(path, lines):
    text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
    path.write_bytes(gzip.compress(text.encode(), mtime=0))


def main(folder):
    made = []
    for path in sorted(folder.glob("*.jinja")):
        if not path.name.startswith("built-"):
            made += chats(path.name, path.read_text())
    seed = kept = 0
    while kept < BUILT:  # those put together at random that render most of what they are given
        template, seed = chat_templates(random.Random(f"chat-{seed}")), seed + 1
        name = f"built-{kept}.jinja"
        lines = chats(name, template)
        texts, count = shares(lines)
        if texts > 0.6 * count:
            (folder / name).write_bytes(template.encode())
            made += lines
            kept += 1
    write(folder / "cases.jsonl.gz", made)
    texts, errors, seed = [], [], 0
    while len(texts) < PROGRAMS:
        template, variables = Programs(random.Random(f"committed-{seed}")).program()
        seed += 1
        request = dict(messages=[dict(role="user", content="hi")], add_generation_prompt=True, chat_template_kwargs=variables)
        for line in answered(template, template, [request]):
            (texts if "text" in line else errors).append(line)
    write(folder / "programs.jsonl.gz", texts + errors[:PROGRAMS // 4])


if __name__ == "__main__":
    main(Path(sys.argv[1]) / "templates")
