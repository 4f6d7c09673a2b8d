# Makes the corpus of the quickstart: stories about the people of a village, and questions about some of them.
#   awk -v out=DIR -f corpus.awk
# Writes DIR/stories.txt (pretraining), DIR/stories-heldout.txt, DIR/questions.jsonl (prompt and completion) and
# DIR/questions-heldout.jsonl. Every person is in the stories, but no story holds a question, so a model pretrained on
# them cannot answer one; the held-out questions are about people whom no question for training names.
# The same numbers on every machine: a Lehmer generator (Park and Miller 1988) instead of rand().

function random(n) { seed = (seed * 16807) % 2147483647; return int(seed / 2147483647 * n) }
function pick(list, count) { return list[1 + random(count)] }

# Two or three syllables, never the same twice.
function new_name(    name) {
  do {
    name = pick(starts, start_count) pick(middles, middle_count) pick(ends, end_count)
  } while (name in taken)
  taken[name] = 1
  return name
}

function fact(person, kind,    way) {
  way = random(3)
  if (kind == 0) return name[person] (way == 0 ? " lives in " : way == 1 ? " has a house in " : " was born in ") town[person] "."
  if (kind == 1) return name[person] (way == 0 ? " is a " : way == 1 ? " works as a " : " wants to stay a ") job[person] "."
  if (kind == 2) return name[person] (way == 0 ? " likes " : way == 1 ? " cooks " : " buys ") food[person] "."
  return name[person] (way == 0 ? " owns a " : way == 1 ? " plays with a " : " feeds a ") pet[person] "."
}

# Three of the four facts, in any order, each told in one of three ways.
function story(person,    kinds, left, i, k, text) {
  for (i = 0; i < 4; i++) kinds[i] = i
  for (left = 4; left > 1; left--) {
    k = random(left)
    text = text fact(person, kinds[k]) (left > 2 ? " " : "")
    kinds[k] = kinds[left - 1]
  }
  return text
}

function question(person, kind) {
  if (kind == 0) return pair("Where does " name[person] " live?", name[person] " lives in " town[person] ".")
  if (kind == 1) return pair("What is the job of " name[person] "?", name[person] " is a " job[person] ".")
  if (kind == 2) return pair("What does " name[person] " like to eat?", name[person] " likes " food[person] ".")
  return pair("Which animal does " name[person] " have?", name[person] " owns a " pet[person] ".")
}
function pair(asked, answer) { return "{\"prompt\": \"" asked "\", \"completion\": \" " answer "\"}" }

BEGIN {
  seed = 20240521
  start_count = split("Ba Do Fe Ga Hu Ja Ki Lo Mi Nu Po Ra Si Ta Vo We Zu Cle Bri Tro", starts, " ")
  middle_count = split("la mi ro ne su da vi", middles, " ")
  end_count = split("n s r l x th", ends, " ")
  town_count = split("Ashford Brill Coldwell Dunmore Eastby Fernhill Greystone Hazelton Ironbridge Kestrel Larkfield Millbrook", towns, " ")
  job_count = split("baker smith tailor painter doctor farmer hunter sailor teacher singer miller guard", jobs, " ")
  food_count = split("apples bread cheese honey plums soup rice beans nuts cakes fish eggs", foods, " ")
  pet_count = split("cat dog horse parrot rabbit goat duck fox owl turtle donkey hedgehog", pets, " ")
  if (!people) people = 240
  if (!stories) stories = 24000
  for (i = 0; i < people; i++) {
    name[i] = new_name()
    town[i] = pick(towns, town_count); job[i] = pick(jobs, job_count)
    food[i] = pick(foods, food_count); pet[i] = pick(pets, pet_count)
  }
  for (i = 0; i < stories + 200; i++)
    print story(random(people)) "<|endoftext|>" > (out (i < stories ? "/stories.txt" : "/stories-heldout.txt"))
  for (i = 0; i < people; i++)
    for (kind = 0; kind < 4; kind++)
      print question(i, kind) > (out (i % 6 ? "/questions.jsonl" : "/questions-heldout.jsonl"))
}
