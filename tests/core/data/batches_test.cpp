#include "nibble/core/data/batches.h"

#include <gmock/gmock.h>

#include <set>

#include "nibble/core/base/error.h"
#include "nibble/tests/core/data/byte_encoder.h"

namespace nibble {
namespace {

using test::Files;
using test::load;
using test::shown;
using ::testing::ElementsAre;

std::string lines(int count) {
  std::string text;
  for (int i = 0; i < count; ++i) {
    text += R"({"prompt": "p", "completion": ")" + std::string(static_cast<size_t>(1 + i * 7 % 23), 'a') +
            std::to_string(i) + "\"}\n";
  }
  return text;
}

Dataset numbered(int count) {
  Files files;
  return load(files.write("a.jsonl", lines(count)));
}

struct Seen {
  std::vector<std::string> texts;
  std::vector<uint64_t> indices;
  bool operator==(const Seen&) const = default;
};

Seen step_of(const Batches& batches, int64_t step) {
  Seen seen;
  for (int64_t m = 0; m < batches.info(step).microbatches; ++m) {
    for (const Sample& sample : batches.samples(step, m)) {
      seen.texts.push_back(shown(sample, true));
      seen.indices.push_back(sample.index);
    }
  }
  return seen;
}

TEST(Batches, ReadyTokensUnshuffledAndUnpackedAreTheFilesLinesInOrder) {
  Files files;
  std::string text;
  for (int i = 0; i < 10; ++i) text += "{\"input_ids\": [" + std::to_string(i) + ", 100, 101]}\n";
  const Dataset dataset = load(files.write("a.jsonl", text), {.format = DataFormat::tokens});
  const Batches batches(dataset, {{.pack = false, .shuffle = false}, 2, 2});
  EXPECT_EQ(batches.steps_in_epoch(0), 3);
  for (int64_t step = 1; step <= 6; ++step) {
    const StepInfo info = batches.info(step);
    EXPECT_EQ(info.epoch, (step - 1) / 3);
    EXPECT_EQ(info.microbatches, step % 3 == 0 ? 1 : 2);
    for (int64_t m = 0; m < info.microbatches; ++m) {
      const std::vector<Sample> samples = batches.samples(step, m);
      ASSERT_EQ(samples.size(), 2u);
      for (int32_t k = 0; k < 2; ++k) {
        const auto line = static_cast<int32_t>((step - 1) % 3 * 4 + m * 2 + k);
        EXPECT_THAT(samples[static_cast<size_t>(k)].ids, ElementsAre(line, 100, 101));
      }
    }
  }
}

TEST(Batches, MicrobatchesOfAStepCoverTheSameSamplesHoweverItIsCut) {
  const Dataset dataset = numbered(50);
  for (const bool pack : {true, false}) {
    const EpochOptions order{.max_length = 64, .pack = pack, .seed = 11};
    const Batches four(dataset, {order, 4, 1}), two(dataset, {order, 2, 2}), one(dataset, {order, 1, 4});
    for (int64_t step = 1; step <= 2 * four.steps_in_epoch(0); ++step) {
      EXPECT_EQ(step_of(four, step), step_of(one, step));
      EXPECT_EQ(step_of(four, step), step_of(two, step));
      EXPECT_EQ(four.info(step).label_tokens, one.info(step).label_tokens);
    }
  }
}

TEST(Batches, AnEpochHasEverySampleOnce) {
  const Dataset dataset = numbered(50);
  for (const bool pack : {true, false}) {
    const Batches batches(dataset, {{.max_length = 64, .pack = pack, .seed = 2}, 3, 2});
    int64_t step = 1;
    for (int64_t epoch = 0; epoch < 3; ++epoch) {
      std::multiset<std::string> texts;
      for (int64_t k = 0; k < batches.steps_in_epoch(epoch); ++k, ++step) {
        EXPECT_EQ(batches.info(step).epoch, epoch);
        EXPECT_EQ(batches.info(step).step_in_epoch, k);
        for (const std::string& text : step_of(batches, step).texts) texts.insert(text);
      }
      EXPECT_EQ(texts.size(), 50u);
      EXPECT_EQ(std::set<std::string>(texts.begin(), texts.end()).size(), 50u);
    }
    EXPECT_EQ(batches.steps_in(3), step - 1);
  }
}

TEST(Batches, AResumedRunSeesTheSameBatches) {
  const Dataset dataset = numbered(50);
  const BatchOptions options{{.max_length = 64, .seed = 5}, 2, 2};
  const Batches through(dataset, options);
  std::vector<Seen> steps;
  for (int64_t step = 1; step <= 20; ++step) steps.push_back(step_of(through, step));
  for (const int64_t step : {20, 3, 11, 1}) {
    const Batches resumed(dataset, options);
    EXPECT_EQ(step_of(resumed, step), steps[static_cast<size_t>(step - 1)]);
  }
  EXPECT_NE(steps[0], step_of(Batches(dataset, {{.max_length = 64, .seed = 6}, 2, 2}), 1));
}

TEST(Batches, LabelTokensAreKnownBeforeTheForwardPass) {
  MemoryPool pool;
  Files files;
  files.write("d/a.jsonl", lines(40));
  files.write("d/b.txt", std::string(500, 't'));
  const Dataset dataset = load(files.path("d"));
  for (const bool pack : {true, false}) {
    const Batches batches(dataset, {{.max_length = 50, .pack = pack, .seed = 8}, 2, 2});
    for (int64_t step = 1; step <= batches.steps_in_epoch(0); ++step) {
      const StepInfo info = batches.info(step);
      int64_t labels = 0, tokens = 0, documents = 0;
      for (int64_t m = 0; m < info.microbatches; ++m) {
        const Batch batch = batches.at(step, m, pool);
        labels += batch.label_tokens;
        tokens += batch.ids.dim(0);
        documents += static_cast<int64_t>(batch.spans.size());
      }
      EXPECT_EQ(info.label_tokens, labels);
      EXPECT_EQ(info.tokens, tokens);
      EXPECT_EQ(info.samples, documents);
      EXPECT_GT(labels, 0);
    }
  }
}

TEST(Batches, IndicesAreUniqueInAnEpoch) {
  Files files;
  const Dataset dataset = load(files.write("a.txt", std::string(500, 't')));
  const Batches batches(dataset, {{.max_length = 20, .seed = 8}, 1, 3});
  std::set<uint64_t> indices;
  size_t count = 0;
  for (int64_t step = 1; step <= batches.steps_in_epoch(0); ++step) {
    for (const uint64_t index : step_of(batches, step).indices) {
      indices.insert(index);
      ++count;
    }
  }
  EXPECT_EQ(indices.size(), count);
}

TEST(Batches, PartsOfAnEpochRoundUp) {
  const Batches batches(numbered(10), {{.pack = false}, 1, 1});
  EXPECT_EQ(batches.steps_in(1), 10);
  EXPECT_EQ(batches.steps_in(0.25), 3);
  EXPECT_EQ(batches.steps_in(2.5), 25);
  EXPECT_THROW(batches.steps_in(0), UsageError);
}

TEST(Batches, AFirstEpochWithoutASampleIsRefusedByItsWeights) {
  Files files;
  const std::string a = files.write("a.jsonl", lines(1));
  const Dataset dataset = Dataset::load({{a, 1e-6}}, {}, test::byte_encoder());
  EXPECT_EQ(test::error_of<InputError>([&] { const Batches batches(dataset, {}); }),
            "data: the first epoch takes no sample, by the weights of the files; raise the weights");
}

TEST(Batches, SizesBelowOneAreRefused) {
  EXPECT_THROW(Batches(numbered(2), {{}, 0, 1}), UsageError);
  EXPECT_THROW(Batches(numbered(2), {{}, 1, 0}), UsageError);
}

}  // namespace
}  // namespace nibble
