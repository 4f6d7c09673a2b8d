#include "nibble/core/data/packing.h"

#include <gmock/gmock.h>

#include <map>
#include <numeric>
#include <set>

#include "nibble/core/io/hash.h"
#include "nibble/tests/core/data/byte_encoder.h"

namespace nibble {
namespace {

using test::Files;
using test::load;
using ::testing::Each;

// 300 completions of 3 to 60 tokens.
std::string completions() {
  std::string lines;
  for (int i = 0; i < 300; ++i) {
    lines += R"({"prompt": "", "completion": ")" + std::string(static_cast<size_t>(1 + i * 37 % 58), 'x') + "\"}\n";
  }
  return lines;
}

std::string documents() {
  std::string text;
  for (int i = 0; i < 20; ++i) text += std::string(static_cast<size_t>(1 + i * 13 % 97), 'd') + "<|endoftext|>";
  return text;
}

int64_t tokens_of(std::span<const Piece> sequence) {
  return std::accumulate(sequence.begin(), sequence.end(), int64_t{0},
                         [](int64_t sum, const Piece& piece) { return sum + piece.end - piece.begin; });
}

TEST(KeyedPermutation, IsAPermutationThatDependsOnItsKeyOnly) {
  const auto one = keyed_permutation(1000, 5, 1, 2);
  EXPECT_EQ(std::set<uint32_t>(one.begin(), one.end()).size(), 1000u);
  EXPECT_EQ(*std::max_element(one.begin(), one.end()), 999u);
  const auto list = [](const LargeArray<uint32_t>& order) { return std::vector<uint32_t>(order.begin(), order.end()); };
  EXPECT_EQ(list(one), list(keyed_permutation(1000, 5, 1, 2)));
  EXPECT_NE(list(one), list(keyed_permutation(1000, 6, 1, 2)));
  EXPECT_NE(list(one), list(keyed_permutation(1000, 5, 1, 3)));
  EXPECT_EQ(keyed_permutation(0, 1, 1, 1).size(), 0u);
}

TEST(KeyedPermutation, PutsEveryElementAtEveryPlaceAboutEquallyOften) {
  std::array<std::array<int, 5>, 5> seen{};
  for (uint64_t key = 0; key < 2000; ++key) {
    const auto order = keyed_permutation(5, key, 1, 0);
    for (size_t place = 0; place < 5; ++place) ++seen[place][order[place]];
  }
  for (const auto& counts : seen) {
    for (const int count : counts) EXPECT_NEAR(count, 400, 80);  // 4.5 standard deviations
  }
}

TEST(Packing, EverySampleIsPackedOnceAndWholeAndNoSequenceIsTooLong) {
  Files files;
  const Dataset dataset = load(files.write("a.jsonl", completions()));
  for (const bool shuffle : {true, false}) {
    const EpochPlan plan = plan_epoch(dataset, {.max_length = 64, .pack = true, .shuffle = shuffle, .seed = 1}, 0);
    std::multiset<uint32_t> samples, numbers;
    for (int64_t k = 0; k < plan.size(); ++k) {
      EXPECT_LE(tokens_of(plan.sequence(k)), 64);
      for (const Piece& piece : plan.sequence(k)) {
        EXPECT_EQ(piece.begin, 0u);
        EXPECT_EQ(piece.end, dataset.info(piece.sample).length);
        samples.insert(piece.sample);
        numbers.insert(piece.number);
      }
    }
    std::vector<uint32_t> expected(300);
    std::iota(expected.begin(), expected.end(), 0u);
    EXPECT_THAT(samples, ::testing::ElementsAreArray(expected));
    EXPECT_THAT(numbers, ::testing::ElementsAreArray(expected));
  }
}

TEST(Packing, BestFitLeavesLittleRoom) {
  Files files;
  const Dataset dataset = load(files.write("a.jsonl", completions()));
  const EpochPlan plan = plan_epoch(dataset, {.max_length = 64, .seed = 1}, 0);
  const int64_t least = (dataset.report().tokens + 63) / 64;
  EXPECT_LE(plan.size(), least + least / 50 + 1) << "within 2% of the bound";
}

TEST(Packing, WithoutShuffleTheOrderStays) {
  Files files;
  const Dataset dataset = load(files.write("a.jsonl", completions()));
  for (const bool pack : {true, false}) {
    const EpochPlan plan = plan_epoch(dataset, {.max_length = 64, .pack = pack, .shuffle = false}, 3);
    uint32_t next = 0;
    for (int64_t k = 0; k < plan.size(); ++k) {
      for (const Piece& piece : plan.sequence(k)) EXPECT_EQ(piece.sample, next++);
    }
    EXPECT_EQ(next, 300u);
  }
}

TEST(Packing, TextFillsSequencesToTheBrimAndLosesNoToken) {
  Files files;
  const Dataset dataset = load(files.write("a.txt", documents()));
  const EpochPlan plan = plan_epoch(dataset, {.max_length = 32, .seed = 4}, 0);
  int64_t total = 0, short_ones = 0;
  std::vector<std::vector<bool>> seen;
  dataset.for_each([&](int64_t, const SampleInfo& sample) { seen.emplace_back(sample.length, false); });
  for (int64_t k = 0; k < plan.size(); ++k) {
    short_ones += tokens_of(plan.sequence(k)) < 32;
    total += tokens_of(plan.sequence(k));
    for (const Piece& piece : plan.sequence(k)) {
      for (uint32_t t = piece.begin; t < piece.end; ++t) {
        EXPECT_FALSE(seen[piece.sample][t]);
        seen[piece.sample][t] = true;
      }
    }
  }
  EXPECT_EQ(short_ones, 1);
  EXPECT_EQ(total, dataset.report().tokens);
}

TEST(Packing, WithoutPackingLongTextGoesOnInTheNextSequence) {
  Files files;
  const Dataset dataset = load(files.write("a.txt", "abcdefgh"));  // 10 tokens
  const EpochPlan plan = plan_epoch(dataset, {.max_length = 4, .pack = false, .shuffle = false}, 0);
  ASSERT_EQ(plan.size(), 3);
  EXPECT_EQ(plan.sequence(1)[0].begin, 4u);
  EXPECT_EQ(plan.sequence(2)[0].end, 10u);
}

TEST(Packing, SequencesWithNothingToPredictAreLeftOut) {
  Files files;
  const Dataset dataset = load(files.write("a.txt", "abcdefg"));  // 9 tokens: EOS would be alone
  for (const bool pack : {true, false}) {
    const EpochPlan plan = plan_epoch(dataset, {.max_length = 4, .pack = pack, .shuffle = false}, 0);
    EXPECT_EQ(plan.size(), 2);
  }
}

TEST(Packing, EpochsDifferAndRepeatExactly) {
  Files files;
  const Dataset dataset = load(files.write("a.jsonl", completions()));
  const auto order = [&](uint64_t seed, uint64_t epoch) {
    const EpochPlan plan = plan_epoch(dataset, {.max_length = 64, .seed = seed}, epoch);
    std::vector<uint32_t> samples;
    for (int64_t k = 0; k < plan.size(); ++k) {
      for (const Piece& piece : plan.sequence(k)) samples.push_back(piece.sample);
    }
    return samples;
  };
  EXPECT_EQ(order(1, 0), order(1, 0));
  EXPECT_NE(order(1, 0), order(1, 1));
  EXPECT_NE(order(1, 0), order(2, 0));
}

TEST(Packing, NumbersComeFromTheOrderBeforePacking) {
  Files files;
  const Dataset dataset = load(files.write("a.jsonl", completions()));
  const auto numbers = [&](bool pack) {
    const EpochPlan plan = plan_epoch(dataset, {.max_length = 64, .pack = pack, .seed = 9}, 0);
    std::vector<uint32_t> of_sample(300);
    for (int64_t k = 0; k < plan.size(); ++k) {
      for (const Piece& piece : plan.sequence(k)) of_sample[piece.sample] = piece.number;
    }
    return of_sample;
  };
  EXPECT_EQ(numbers(true), numbers(false));
}

TEST(Packing, WeightsRepeatAndDrawSamples) {
  Files files;
  const std::string a = files.write("a.jsonl", completions());
  const std::string b = files.write("b.jsonl", completions());
  const Dataset dataset = Dataset::load({{a, 2.0}, {b, 0.25}}, {}, test::byte_encoder());
  const auto counts = [&](uint64_t epoch) {
    const EpochPlan plan = plan_epoch(dataset, {.pack = false, .seed = 3}, epoch);
    std::vector<int> times(600);
    for (int64_t k = 0; k < plan.size(); ++k) ++times[plan.sequence(k)[0].sample];
    return times;
  };
  const std::vector<int> first = counts(0), second = counts(1);
  EXPECT_THAT(std::vector<int>(first.begin(), first.begin() + 300), Each(2));
  EXPECT_EQ(std::accumulate(first.begin() + 300, first.end(), 0), 75);
  EXPECT_EQ(std::accumulate(second.begin() + 300, second.end(), 0), 75);
  EXPECT_NE(first, second);
}

TEST(Packing, WeightsTakeTheirShareOverEpochsWhereItIsNoWholeNumberOfSamples) {
  Files files;
  const std::string a = files.write("a.jsonl", completions());
  const auto taken = [&](double weight, int64_t epochs) {
    const Dataset dataset = Dataset::load({{a, 1.0}, {a, weight}}, {}, test::byte_encoder());
    int64_t sum = 0;
    for (int64_t epoch = 0; epoch < epochs; ++epoch) {
      sum += plan_epoch(dataset, {.pack = false, .seed = 3}, static_cast<uint64_t>(epoch)).size() - 300;
    }
    return sum;
  };
  // Of 300 samples; 4 standard deviations of so many draws.
  EXPECT_NEAR(static_cast<double>(taken(0.2 / 300, 1000)), 200, 51);
  EXPECT_NEAR(static_cast<double>(taken(2.3 / 300, 1000)), 2300, 58);
  EXPECT_EQ(taken(3.0 / 300, 50), 150);
}

// XXH3-128 of all that a plan says.
std::string digest(const EpochPlan& plan) {
  Hasher hasher;
  for (int64_t k = 0; k < plan.size(); ++k) {
    const uint64_t pieces = plan.sequence(k).size();
    hasher.update(std::as_bytes(std::span(&pieces, 1)));
    hasher.update(std::as_bytes(plan.sequence(k)));
  }
  return hasher.hex();
}

// A run that is resumed sees the order that it began with, whichever version of nibble it began with.
TEST(Packing, PlansAreThoseOfEarlierVersions) {
  Files files;
  const std::string a = files.write("a.jsonl", completions()), b = files.write("b.txt", documents());
  const std::string c = files.write("c.jsonl", completions());
  for (const std::string& cache : {std::string(), files.path("cache")}) {
    Encoder encoder = test::byte_encoder();
    encoder.fingerprint = "bytes";
    DataOptions options;
    options.cache = cache;
    options.max_length = 64;
    const Dataset all = Dataset::load({{a, 1.0}, {b, 2.0}, {c, 1.25}}, options, encoder);
    const auto [train, eval] = all.split(0.2, 7, 64);
    std::string seen = train.fingerprint() + eval.fingerprint();
    for (const Dataset* dataset : {&all, &train, &eval})
      for (const bool pack : {true, false})
        for (const bool shuffle : {true, false})
          seen += digest(plan_epoch(*dataset, {.max_length = 64, .pack = pack, .shuffle = shuffle, .seed = 5}, 2));
    EXPECT_EQ(hash_bytes(std::as_bytes(std::span(seen))), "955f4ec17a45fa8b434b2cc1adf48125") << cache;
  }
}

// Records of one to three samples of 3 to 60 tokens; groups of up to 180.
std::string groups() {
  std::string lines;
  for (int i = 0; i < 90; ++i) {
    std::string ids;
    for (int k = 0; k < 1 + i % 3; ++k) {
      ids += k > 0 ? ", [" : "[";
      for (int t = 0; t < 3 + (i * 37 + k * 11) % 58; ++t) ids += (t > 0 ? ", " : "") + std::to_string(t);
      ids += "]";
    }
    lines += "{\"input_ids\": [" + ids + "]}\n";
  }
  return lines;
}

TEST(Packing, GroupsAreNeverParted) {
  Files files;
  const std::string path = files.write("a.jsonl", groups());
  const Dataset all = Dataset::load({{path, 1.0}, {path, 2.5}}, {.max_length = 64}, test::byte_encoder());
  ASSERT_TRUE(all.has_groups());
  EXPECT_EQ(all.report().records, 180);
  EXPECT_EQ(all.size(), 360);
  const auto [train, eval] = all.split(0.3, 7, 64);
  EXPECT_EQ(train.size() + eval.size(), 360);
  for (const Dataset* dataset : {&all, &train, &eval}) {
    for (const bool pack : {true, false}) {
      for (const bool shuffle : {true, false}) {
        const EpochPlan plan = plan_epoch(*dataset, {.max_length = 64, .pack = pack, .shuffle = shuffle, .seed = 1}, 0);
        std::map<uint32_t, int> seen;
        std::set<uint32_t> numbers;
        int64_t pieces = 0, longest_packed = 0;
        for (int64_t k = 0; k < plan.size(); ++k) {
          const std::span<const Piece> sequence = plan.sequence(k);
          int64_t in_sequence = 0;
          for (size_t i = 0; i < sequence.size(); ++i) {
            const uint32_t sample = sequence[i].sample;
            EXPECT_EQ(sequence[i].end, dataset->info(sample).length);
            if (dataset->continues_group(sample)) {
              ASSERT_GT(i, 0u);
              EXPECT_EQ(sequence[i - 1].sample + 1, sample);
              EXPECT_EQ(sequence[i - 1].number + 1, sequence[i].number);
            } else {
              ++in_sequence;
            }
            // And its end: the next sample of the group is here too.
            if (sample + 1 < dataset->size() && dataset->continues_group(sample + 1)) {
              ASSERT_LT(i + 1, sequence.size());
            }
            ++seen[sample];
            numbers.insert(sequence[i].number);
            ++pieces;
          }
          if (in_sequence > 1) longest_packed = std::max(longest_packed, tokens_of(sequence));
          EXPECT_TRUE(pack || in_sequence == 1);
        }
        EXPECT_LE(longest_packed, 64) << "what is longer is one group";
        EXPECT_EQ(numbers.size(), static_cast<size_t>(pieces));
        for (int64_t i = 0; i < dataset->size(); ++i) {
          const auto sample = static_cast<uint32_t>(i);
          const int copies = seen[sample];
          EXPECT_TRUE(dataset->info(i).source == 0 ? copies == 1 : copies == 2 || copies == 3) << copies;
          EXPECT_TRUE(!dataset->continues_group(i) || copies == seen[sample - 1]);
        }
      }
    }
  }
}

}  // namespace
}  // namespace nibble
