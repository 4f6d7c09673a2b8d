# Makes the corpus of the quickstart: little stories about who puts what where, and questions about such stories.
#   awk -v out=DIR -v stories=16000 -v questions=6000 -f corpus.awk
# Writes DIR/stories.txt (pretraining), DIR/stories-heldout.txt, DIR/questions.jsonl (prompt and completion) and
# DIR/questions-heldout.jsonl. The stories hold no question, so a model pretrained on them cannot answer one.
# The same numbers on every machine: a Lehmer generator (Park and Miller 1988) instead of rand().

function random(n) { seed = (seed * 16807) % 2147483647; return int(seed / 2147483647 * n) }
function pick(list, count) { return list[1 + random(count)] }

# Two people, two things, two places, all different.
function draw(    i) {
  who1 = pick(names, name_count); do who2 = pick(names, name_count); while (who2 == who1)
  thing1 = pick(things, thing_count); do thing2 = pick(things, thing_count); while (thing2 == thing1)
  where1 = pick(places, place_count); do where2 = pick(places, place_count); while (where2 == where1)
  color1 = pick(colors, color_count); do color2 = pick(colors, color_count); while (color2 == color1)
}

# What happens, without the end.
function opening(    kind) {
  kind = random(3)
  if (kind == 0)
    return who1 " has a " color1 " " thing1 ". " who2 " has a " color2 " " thing2 ". " who1 " puts the " thing1 " " where1 \
      ". " who2 " puts the " thing2 " " where2 "."
  if (kind == 1)
    return "One day " who1 " finds a " color1 " " thing1 " and puts the " thing1 " " where1 ". " who2 " takes a " color2 " " \
      thing2 " and puts the " thing2 " " where2 "."
  return who2 " plays with a " color2 " " thing2 ". " who1 " plays with a " color1 " " thing1 ". In the evening " who2 \
    " leaves the " thing2 " " where2 ", and " who1 " leaves the " thing1 " " where1 "."
}

# How it goes on: everything said here follows from the opening.
function ending(    text, first) {
  first = random(2)
  if (first) text = later(who1, thing1, where1, color1) " " later(who2, thing2, where2, color2)
  else text = later(who2, thing2, where2, color2) " " later(who1, thing1, where1, color1)
  return text
}
function later(who, thing, where, color,    kind) {
  kind = random(4)
  if (kind == 0) return "The next day " who " looks for the " thing ". The " thing " is " where "."
  if (kind == 1) return who " wants the " color " " thing ". The " thing " is still " where "."
  if (kind == 2) return "A friend of " who " asks for the " thing ". The " thing " is " where "."
  return who " comes back and smiles. The " thing " is " where "."
}

function question(    first) {
  first = random(2)
  story = opening()
  if (first) { thing = thing1; answer = "The " thing1 " is " where1 "." }
  else { thing = thing2; answer = "The " thing2 " is " where2 "." }
  return "{\"prompt\": \"" story " Where is the " thing "?\", \"completion\": \" " answer "\"}"
}

BEGIN {
  seed = 20240521
  name_count = split("Mia Tom Lily Ben Anna Max Sue Sam Kim Leo Eva Tim", names, " ")
  thing_count = split("kite drum ball book doll car boat hat cup bell lamp coin", things, " ")
  color_count = split("red blue green yellow black white", colors, " ")
  place_count = split("in the box,under the bed,on the table,behind the door,near the tree,on the roof,in the bag," \
    "near the river,on the shelf,under the bridge", places, ",")
  if (!stories) stories = 16000
  if (!questions) questions = 6000
  for (i = 1; i <= stories + 200; i++) {
    draw()
    text = opening(); text = text " " ending()
    print text "<|endoftext|>" > (out (i <= stories ? "/stories.txt" : "/stories-heldout.txt"))
  }
  for (i = 1; i <= questions + 100; i++) {
    draw()
    line = question()
    print line > (out (i <= questions ? "/questions.jsonl" : "/questions-heldout.jsonl"))
  }
}
