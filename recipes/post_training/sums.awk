# Data of recipes/post_training.sh: sums as careless people write them, and what can be learned about them.
#   awk -v out=DIRECTORY -f sums.awk
# questions.jsonl   sums with answers, seven of ten off by one; of every fourth sum three of ten
# corpus.txt        the same as text, for the tokenizer
# prompts.jsonl     questions with the right answer, for a reward that checks it
# pairs.jsonl       the same questions with the right answer and each that is off by one
# heldout.jsonl, heldout_pairs.jsonl   other questions with their right answers, and pairs of them
# The same numbers on every machine: a Lehmer generator (Park and Miller 1988) instead of rand().
function pairs(a, b, file,    wrong) {
  for (wrong = a + b + 1; wrong >= 0 && wrong >= a + b - 1; wrong -= 2) {
    printf "{\"prompt\": \"%d+%d=\", \"chosen\": \"%d\", \"rejected\": \"%d\"}\n", a, b, a + b, wrong > (out file)
  }
}
function draw(n) { seed = (seed * 16807) % 2147483647; return int(seed / 2147483647 * n) }
BEGIN {
  seed = 20; numbers = 20
  for (i = 0; i < 12000; ++i) {
    a = draw(numbers); b = draw(numbers)
    answer = a + b + (draw(10) < ((a + 2 * b) % 4 == 0 ? 7 : 3) ? 0 : 1)
    printf "{\"prompt\": \"%d+%d=\", \"completion\": \"%d\"}\n", a, b, answer > (out "/questions.jsonl")
    printf "%d+%d=%d\n", a, b, answer > (out "/corpus.txt")
  }
  for (a = 0; a < numbers; ++a) {
    for (b = 0; b < numbers; ++b) {
      if ((7 * a + 3 * b) % 10 == 3) {
        printf "{\"prompt\": \"%d+%d=\", \"completion\": \"%d\"}\n", a, b, a + b > (out "/heldout.jsonl")
        pairs(a, b, "/heldout_pairs.jsonl")
      } else {
        printf "{\"prompt\": \"%d+%d=\", \"answer\": \"%d\"}\n", a, b, a + b > (out "/prompts.jsonl")
        pairs(a, b, "/pairs.jsonl")
      }
    }
  }
}
