# Data of recipes/post_training.sh: sums as careless people write them, and what can be learned about them.
#   awk -v out=DIRECTORY -f sums.awk
# corpus.txt, questions.jsonl   sums, four of five of which are off by one
# pairs.jsonl                   the right answer against one that is off by one
# prompts.jsonl                 questions with the right answer, for rewards that check it
# heldout.jsonl                 questions with right answers about sums that none of these but the corpus has
# The same numbers on every machine: a Lehmer generator (Park and Miller 1988) instead of rand().
function draw(n) { seed = (seed * 16807) % 2147483647; return int(seed / 2147483647 * n) }
function held(a, b) { return (3 * a + b) % 10 == 0 }
function question(a, b) { return a "+" b "=" }
BEGIN {
  seed = 20; numbers = 40
  for (i = 0; i < 24000; ++i) {
    a = draw(numbers); b = draw(numbers); kind = draw(20)
    answer = a + b + (kind < 4 ? 0 : kind < 13 || a + b == 0 ? 1 : -1)
    if (i < 21000) print question(a, b) answer > (out "/corpus.txt")
    else if (!held(a, b)) printf "{\"prompt\": \"%s\", \"completion\": \"%s\"}\n", question(a, b), answer > (out "/questions.jsonl")
  }
  for (a = 0; a < numbers; ++a) for (b = 0; b < numbers; ++b) all[count++] = a * numbers + b
  for (i = count - 1; i > 0; --i) { j = draw(i + 1); t = all[i]; all[i] = all[j]; all[j] = t }
  for (i = 0; i < count; ++i) {
    a = int(all[i] / numbers); b = all[i] % numbers; right = a + b
    if (held(a, b)) { if (h++ < 100) printf "{\"prompt\": \"%s\", \"completion\": \"%s\"}\n", question(a, b), right > (out "/heldout.jsonl"); continue }
    printf "{\"prompt\": \"%s\", \"answer\": \"%s\"}\n", question(a, b), right > (out "/prompts.jsonl")
    wrong = (a + b + (i % 2 || a + b == 0 ? 1 : -1))
    printf "{\"prompt\": \"%s\", \"chosen\": \"%s\", \"rejected\": \"%s\"}\n", question(a, b), right, wrong > (out "/pairs.jsonl")
  }
}
