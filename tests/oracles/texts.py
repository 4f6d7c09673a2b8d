"""Text of our own for models, tokenizers and data sets: little stories and sums, the same for the same seed.

    python texts.py OUT      writes OUT/stories/{stories.txt,texts.jsonl,chats.jsonl}, OUT/sums/{alpaca.json,test.jsonl}: tests/data
"""
import argparse, json, random, re
from pathlib import Path

# Two worlds: what the model is trained on, and what tests tune it for.
WORLDS = {
    "park": dict(
        names="Lily Ben Tom Mia Sam Anna Max Sue Tim Lucy".split(),
        animals="dog cat bird rabbit frog mouse".split(),
        places=["the park", "the garden", "the school", "the shop", "the big tree"],
        things="ball,box,cake,toy car,red hat,book,flower,kite".split(","),
        adjectives="little happy big brave kind shy".split(),
        verbs=["play with", "look for", "share", "find", "show"],
        feelings="happy sad proud tired scared excited".split(),
    ),
    "harbour": dict(
        names="Ole Zoë Juan Björn Kira Noor Yusuf".split(),
        animals="seal gull crab otter whale".split(),
        places=["the harbour", "the lighthouse", "the island", "the café by the quay"],
        things="net,rope,lantern,map,blue boat,shell,anchor".split(","),
        adjectives="salty quiet old quick clever".split(),
        verbs=["mend", "carry", "sell", "hide", "paint"],
        feelings="calm glad curious seasick amazed".split(),
    ),
}


def story(r, world):
    w = WORLDS[world]
    pick = lambda kind: r.choice(w[kind])
    name, friend = r.sample(w["names"], 2)
    animal, place, thing, feeling = pick("animals"), pick("places"), pick("things"), pick("feelings")
    who = r.choice(["boy", "girl"])
    he, his = ("he", "his") if who == "boy" else ("she", "her")
    He = he.capitalize()
    first = r.choice([
        f"Once upon a time, there was a {pick('adjectives')} {animal} named {name}. {name} liked to {pick('verbs')} a {thing}.",
        f"Once upon a time there was a {pick('adjectives')} {who} named {name}. {He} had a {thing} and a {animal}.",
        f"One day, a little {who} named {name} went to {place}. {He} wanted to {pick('verbs')} a {thing}.",
        f"{name} was a {pick('adjectives')} {who} who lived near {place}. Every day {he} went out with {his} {animal}.",
    ])
    middle = r.sample([
        f"One day, {name} saw a {pick('adjectives')} {pick('animals')} in {place}.",
        f"It was very {pick('feelings')} and did not know what to do.",
        f'"Hello, {friend}!" said {name}. "Do you want to {pick("verbs")} the {thing} with me?"',
        f'{friend} said, "Yes, I do! But first we must go to {pick("places")}."',
        f"They looked under the {pick('things')} and behind the {pick('things')}, but there was no {thing}.",
        f"“Wow, what a {pick('adjectives')} {thing}!” said {friend}. “Can I see it?”",
        f"The sun was warm and the {pick('animals')} sang a song.",
        f"{name} fell down and was {pick('feelings')}. {friend} came to help.",
        f"{name} and {friend} counted: one, two, {r.choice(['three', 'four', 'five'])}!",
    ], r.randrange(3, 6))
    last = r.choice([
        f"They were very {feeling}. {name} and {friend} became best friends.",
        f"At the end of the day, {name} went home and told {his} mom about the {thing}.",
        f"From that day on, {name} always went to {place} with the {animal}.",
        f"And that is how {name} found a {thing}. They were very happy.",
    ])
    return "\n".join([first, " ".join(middle), last])


def with_new_words(r, text, share):
    """`share` of its words replaced by such as no world has, so that a model learns to expect them."""
    syllable = lambda: r.choice("b c d f g gr h j k l m n p r s sh st t th tr v w".split()) + r.choice("a e i o u ee oo ea".split()) + \
        r.choice(["", "", "n", "r", "s", "ck", "ld", "ng"])
    new = lambda word: "".join(syllable() for _ in range(r.choice([1, 1, 2, 3])))
    return re.sub("[A-Za-z]+", lambda word: new(word) if r.random() < share else word[0], text)


def stories(seed, count, world):
    r = random.Random(f"stories-{world}-{seed}")
    return [story(r, world) for _ in range(count)]


def chat(r):
    """A few turns about a story: contents as text or as a list of parts, as data sets have either."""
    made = [dict(role="system", content="You answer in one line.")] if r.random() < 0.4 else []
    for question, answer in [problem(r) for _ in range(r.randrange(1, 4))]:
        made += [dict(role="user", content=question), dict(role="assistant", content=answer.split("\n")[0])]
    if r.random() < 0.5:
        made = [dict(message, content=[dict(type="text", value=message["content"])]) for message in made]
    return dict(messages=made)


def problem(r):
    """A sum in words: instruction, output with its steps, as graded-school data sets have them."""
    w = WORLDS[r.choice(sorted(WORLDS))]
    name, thing, place = r.choice(w["names"]), r.choice(w["things"]), r.choice(w["places"])
    a, b, c = r.randrange(3, 60), r.randrange(2, 12), r.randrange(1, 9)
    kind = r.randrange(4)
    if kind == 0:
        return (f"{name} had {a} {thing}s and bought {b} more at {place}. How many {thing}s does {name} have now?",
                f"{name} has {a} + {b} = <<{a}+{b}={a + b}>>{a + b} {thing}s.\n#### {a + b}")
    if kind == 1:
        return (f"A {thing} costs ${b}. {name} buys {c} of them and pays ${b * c + a}. How much money does {name} get back?",
                f"The {thing}s cost {b} * {c} = $<<{b}*{c}={b * c}>>{b * c}.\n"
                f"{name} gets {b * c + a} - {b * c} = $<<{b * c + a}-{b * c}={a}>>{a} back.\n#### {a}")
    if kind == 2:
        return (f"There are {b * c} {thing}s in {place}. {name} puts them in {c} equal rows. How long is each row?",
                f"Each row has {b * c} / {c} = <<{b * c}/{c}={b}>>{b} {thing}s.\n#### {b}")
    return (f"{name} walks {b} miles to {place} every day for {c} weeks. How many miles is that?",
            f"In a week {name} walks {b} * 7 = <<{b}*7={7 * b}>>{7 * b} miles.\n"
            f"In {c} weeks that is {7 * b} * {c} = <<{7 * b}*{c}={7 * b * c}>>{7 * b * c} miles.\n#### {7 * b * c}")


def problems(seed, count):
    r = random.Random(f"problems-{seed}")
    return [problem(r) for _ in range(count)]


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    out = parser.parse_args().out
    (out / "stories").mkdir(parents=True, exist_ok=True)
    (out / "sums").mkdir(exist_ok=True)
    (out / "stories/stories.txt").write_text("\n<|endoftext|>\n".join(stories(1, 9, "harbour")) + "\n")
    sums = problems(1, 520)
    (out / "sums/alpaca.json").write_text(json.dumps(
        [dict(instruction=question, input="", output=answer) for question, answer in sums[:460]], indent=0, ensure_ascii=False) + "\n")
    r = random.Random("chats")
    records = {"sums/test.jsonl": [dict(question=question, answer=answer) for question, answer in sums[460:]],
               "stories/texts.jsonl": [dict(text=story) for story in stories(2, 40, "harbour")],
               "stories/chats.jsonl": [chat(r) for _ in range(40)]}
    for name, lines in records.items():
        (out / name).write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines))
