#include "nibble/core/data/dataset.h"

#include <gmock/gmock.h>

#include "nibble/core/base/error.h"
#include "nibble/core/base/parallel.h"
#include "nibble/tests/core/data/byte_encoder.h"

namespace nibble {
namespace {

using test::byte_encoder;
using test::error_of;
using test::Files;
using test::load;
using test::shown;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<std::string> all(const Dataset& dataset, bool masked = false) {
  std::vector<std::string> texts;
  for (int64_t i = 0; i < dataset.size(); ++i) texts.push_back(shown(dataset.sample(i), masked));
  return texts;
}

std::string numbered_lines(int count) {
  std::string lines;
  for (int i = 0; i < count; ++i) {
    lines += R"({"prompt": "p", "completion": ")" + std::to_string(i) + "\"}\n";
  }
  return lines;
}

TEST(Dataset, KeepsTheOrderOfFilesAndRecordsForAnyNumberOfThreads) {
  Files files;
  const std::string path = files.write("a.jsonl", numbered_lines(5000));
  const int before = threads();
  set_threads(1);
  const Dataset one = load(path);
  set_threads(4);
  const Dataset four = load(path);
  set_threads(before);
  EXPECT_EQ(one.size(), 5000);
  EXPECT_EQ(shown(one.sample(4321)), "^p4321$");
  EXPECT_EQ(all(one), all(four));
  EXPECT_EQ(one.fingerprint(), four.fingerprint());
}

TEST(Dataset, EachFileHasAFormatOfItsOwn) {
  Files files;
  files.write("d/1.jsonl", R"({"prompt": "a", "completion": "b"})");
  files.write("d/2.json", R"([{"text": "c"}])");
  files.write("d/3.txt", "d");
  const Dataset dataset = load(files.path("d"));
  EXPECT_THAT(all(dataset, true), ElementsAre("__b$", "_c$", "_d$"));
  EXPECT_TRUE(dataset.info(0).whole);
  EXPECT_FALSE(dataset.info(1).whole);
  EXPECT_FALSE(dataset.info(2).whole);
  ASSERT_EQ(dataset.report().files.size(), 3u);
  EXPECT_EQ(dataset.report().files[1].format, DataFormat::text);
}

TEST(Dataset, ReportAccountsForEveryRecord) {
  Files files;
  DataOptions options;
  options.format = DataFormat::tokens;
  options.max_length = 4;
  options.truncate = Truncate::cut;
  options.skip_bad = 1;
  const std::string path = files.write("a.jsonl",
                                       "{\"input_ids\": [1, 2, 3]}\n"
                                       "{\"input_ids\": [1, 2], \"labels\": [1, -100]}\n"  // first is never predicted
                                       "{\"input_ids\": [1\n"
                                       "{\"input_ids\": [1, 2, 3, 4, 5, 6]}\n"
                                       "{\"input_ids\": [1, 2, 3, 4, 5], \"labels\": [-100, -100, -100, -100, 5]}\n");
  const DatasetReport report = load(path, options).report();
  EXPECT_EQ(report.records, 5);
  EXPECT_EQ(report.samples, 2);
  EXPECT_EQ(report.tokens, 7);
  EXPECT_EQ(report.trained_tokens, 5);
  EXPECT_EQ(report.bad_records, 1);
  EXPECT_EQ(report.dropped_untrained, 2);
  EXPECT_EQ(report.truncated, 2);
  EXPECT_EQ(report.truncated_tokens, 3);
  EXPECT_EQ(report.longest, 6);
  EXPECT_EQ(report.lengths[1], 1);  // length 3: those of 2 and 5 are dropped
  EXPECT_EQ(report.lengths[2], 1);  // 6
  EXPECT_THAT(report.first_bad, HasSubstr("a.jsonl:3:17: is not JSON"));
  EXPECT_EQ(report.warnings.size(), 1u);
  EXPECT_NEAR(report.trained_share(), 5.0 / 7.0, 1e-12);
}

TEST(Dataset, TooLongSamplesAreRefusedCutOrDropped) {
  Files files;
  const std::string path = files.write("a.jsonl",
                                       "{\"prompt\": \"p\", \"completion\": \"ab\"}\n"
                                       "{\"prompt\": \"p\", \"completion\": \"abcdef\"}\n"
                                       "{\"prompt\": \"p\", \"completion\": \"abcdefg\"}\n");
  DataOptions options;
  options.max_length = 5;
  EXPECT_THAT(
      error_of<InputError>([&] { load(path, options); }),
      HasSubstr("a.jsonl:2:1: is longer than data.max_length (5 tokens), as are 2 of 3 records; the longest has "
                "10; raise data.max_length, or set data.truncate to cut or drop"));
  options.truncate = Truncate::cut;
  EXPECT_THAT(all(load(path, options)), ElementsAre("^pab$", "^pabc", "^pabc"));
  options.truncate = Truncate::drop;
  options.max_dropped = 0.7;
  const Dataset dropped = load(path, options);
  EXPECT_THAT(all(dropped), ElementsAre("^pab$"));
  EXPECT_EQ(dropped.report().longest, 5) << "of the samples, without what is dropped";
  EXPECT_EQ(dropped.report().dropped_long, 2);
}

// A data set of which next to nothing is left was meant to be read otherwise.
TEST(Dataset, IsRefusedWhereMostOfItIsDropped) {
  Files files;
  std::string lines = numbered_lines(3);
  for (int i = 0; i < 4; ++i) lines += "{\"prompt\": \"p\", \"completion\": \"far too long\"}\n";
  const std::string path = files.write("a.jsonl", lines);
  DataOptions options;
  options.max_length = 5;
  options.truncate = Truncate::drop;
  EXPECT_THAT(error_of<InputError>([&] { load(path, options); }),
              HasSubstr("a.jsonl: 4 of 7 records are dropped (0 without a trained token, 4 too long), a larger share "
                        "than data.max_dropped (0.5)"));
  options.max_dropped = 0.6;
  EXPECT_EQ(load(path, options).size(), 3);
  options.max_dropped = 0;
  options.max_length = 100;
  EXPECT_EQ(load(path, options).size(), 7);
}

// Of an empty answer the end is trained: nothing is dropped, and nothing is learned but to stop.
TEST(Dataset, IsRefusedWhereMostAnswersAreEmpty) {
  Files files;
  std::string lines = numbered_lines(3);
  for (const char* empty : {"", " ", "\\n", ""})
    lines += R"({"prompt": "p", "completion": ")" + std::string(empty) + "\"}\n";
  const std::string path = files.write("a.jsonl", lines);
  DataOptions options;
  EXPECT_THAT(
      error_of<InputError>([&] { load(path, options); }),
      HasSubstr("a.jsonl: 4 of 7 records are dropped or empty (4 train the end alone of an empty answer or text, 0 "
                "without a trained token, 0 too long), a larger share than data.max_dropped (0.5); check "
                "data.fields, data.format"));
  options.max_dropped = 0.6;
  const Dataset kept = load(path, options);
  EXPECT_EQ(kept.size(), 7);
  EXPECT_EQ(kept.report().empty_answers, 4);
  EXPECT_THAT(kept.report().warnings,
              ElementsAre("4 of 7 records have an empty answer or text: nothing but its end is trained"));
  options.train_on_prompt = true;
  EXPECT_EQ(load(path, options).report().empty_answers, 0);
}

TEST(Dataset, ADocumentIsNoRecordOfWhatIsCompared) {
  Files files;
  const std::string path = files.write("a.txt", "some words");
  for (const DataFormat format :
       {DataFormat::preference, DataFormat::unpaired, DataFormat::labeled, DataFormat::prompts, DataFormat::rollouts}) {
    DataOptions options;
    options.format = format;
    EXPECT_THAT(error_of<InputError>([&] { load(path, options); }),
                HasSubstr("a.txt: is a document, not a list of records; give records of the format " +
                          std::string(data_format_name(format)) + ", as .jsonl"));
  }
}

// Nothing is predicted in it, but its last token is scored.
TEST(Dataset, ATextOfOneTokenHasALabel) {
  Files files;
  DataOptions options;
  options.format = DataFormat::labeled;
  const Dataset dataset = load(files.write("d.jsonl", R"({"input_ids": [5], "label": 1})"), options);
  ASSERT_EQ(dataset.size(), 1);
  EXPECT_EQ(dataset.info(0).trained, 1U);
  EXPECT_EQ(dataset.report().dropped_untrained, 0);
}

TEST(Dataset, AnEmptyAnswerIsOneInEveryFormat) {
  Files files;
  const auto empty = [&](const std::string& name, std::string line) {
    std::erase(line, '\n');
    DataOptions options;
    options.max_dropped = 1;
    if (name == "preference") options.format = DataFormat::preference;
    if (name == "unpaired") options.format = DataFormat::unpaired;
    if (name == "labeled") options.format = DataFormat::labeled;
    return load(files.write(name + ".jsonl", line), options).report().empty_answers;
  };
  EXPECT_EQ(empty("alpaca", R"({"instruction": "a", "output": ""})"), 1);
  EXPECT_EQ(empty("question", R"({"question": "a", "answer": ""})"), 1);
  EXPECT_EQ(empty("text", R"({"text": " "})"), 1);
  EXPECT_EQ(empty("labeled", R"({"text": " ", "label": 1})"), 1);
  EXPECT_EQ(empty("labeled", R"({"text": "a", "label": 1})"), 0);
  EXPECT_EQ(empty("chat", R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": ""}]})"),
            1);
  EXPECT_EQ(empty("one of two", R"({"messages": [{"role": "assistant", "content": ""},
                                   {"role": "user", "content": "b"}, {"role": "assistant", "content": "c"}]})"),
            0);
  EXPECT_EQ(empty("calls", R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "",
                               "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]}]})"),
            0);
  EXPECT_EQ(empty("tokens", R"({"input_ids": [1, 2, 257], "labels": [-100, -100, 257]})"), 1);
  EXPECT_EQ(empty("answer", R"({"input_ids": [1, 2, 257], "labels": [-100, 2, 257]})"), 0);
  EXPECT_EQ(empty("preference", R"({"prompt": "a", "chosen": "", "rejected": " "})"), 1);
  EXPECT_EQ(empty("completion", R"({"prompt": "a", "completion": "b"})"), 0);
  EXPECT_EQ(empty("unpaired", R"({"prompt": "a", "completion": "", "label": true})"), 1);
}

TEST(Dataset, TextIsNeverTooLong) {
  Files files;
  DataOptions options;
  options.max_length = 4;
  EXPECT_THAT(all(load(files.write("a.txt", "abcdefghij"), options)), ElementsAre("^abcdefghij$"));
}

TEST(Dataset, WithoutATrainedTokenItIsRefused) {
  Files files;
  EXPECT_THAT(error_of<InputError>([&] { load(files.write("a.jsonl", "\n")); }), HasSubstr("holds no record"));
  EXPECT_THAT(
      error_of<InputError>([&] { load(files.write("b.jsonl", R"({"input_ids": [1, 2], "labels": [-100, -100]})")); }),
      HasSubstr("has no sample to train on: of 1 record 1 without a trained token"));
}

TEST(Dataset, TheFirstBadRecordStopsUnlessSkippingIsAllowed) {
  Files files;
  std::string lines = numbered_lines(3000);
  lines.insert(0, "{\"prompt\": 1, \"completion\": \"x\"}\n");
  lines += "{]\n";
  const std::string path = files.write("a.jsonl", lines);
  EXPECT_THAT(error_of<InputError>([&] { load(path); }), HasSubstr("a.jsonl:1:1: field \"prompt\" is number"));
  DataOptions options;
  options.skip_bad = 1;
  EXPECT_THAT(error_of<InputError>([&] { load(path, options); }), HasSubstr("more than 1 record is bad, the first: "));
  options.skip_bad = 2;
  EXPECT_EQ(load(path, options).size(), 3000);
}

TEST(Dataset, FormatIsFoundBehindABadFirstLine) {
  Files files;
  DataOptions options;
  options.skip_bad = 1;
  EXPECT_EQ(load(files.write("a.jsonl", "garbage\n{\"text\": \"a\"}\n"), options).size(), 1);
}

TEST(Dataset, TokensOutsideTheModelsVocabularyAreRefused) {
  Files files;
  Encoder encoder = byte_encoder();
  encoder.vocab_size = 100;
  EXPECT_THAT(error_of<InputError>([&] { load(files.write("a.txt", "a~"), {}, encoder); }),
              HasSubstr("a.txt:1:1: gives token 256, outside the vocabulary of 100 tokens"));
}

TEST(Dataset, BosThatTextsBringIsReported) {
  Files files;
  const Dataset dataset = load(files.write("a.txt", "^a"));
  EXPECT_EQ(dataset.report().duplicate_bos, 1);
  EXPECT_THAT(dataset.report().warnings, ElementsAre(HasSubstr("1 text begins with a BOS already")));
}

TEST(Dataset, SplitHoldsOutAKeyedShareAndLosesNothing) {
  Files files;
  const Dataset whole = load(files.write("a.jsonl", numbered_lines(200)));
  const auto [train, eval] = whole.split(0.1, 7, 2048);
  EXPECT_EQ(train.size(), 180);
  EXPECT_EQ(eval.size(), 20);
  std::vector<std::string> both = all(train), held_out = all(eval);
  both.insert(both.end(), held_out.begin(), held_out.end());
  EXPECT_THAT(both, ::testing::UnorderedElementsAreArray(all(whole)));
  EXPECT_EQ(all(whole.split(0.1, 7, 2048).second), held_out);
  EXPECT_NE(all(whole.split(0.1, 8, 2048).second), held_out);
  EXPECT_NE(train.fingerprint(), whole.fingerprint());
  EXPECT_EQ(eval.report().samples, 20);
}

TEST(Dataset, SplitCutsALongTextSoThatOneFileIsEnough) {
  Files files;
  const Dataset whole = load(files.write("a.txt", std::string(95, 'x')));  // 97 tokens
  const auto [train, eval] = whole.split(0.2, 0, 10);
  EXPECT_EQ(train.size(), 8);
  EXPECT_EQ(eval.size(), 2);
  EXPECT_EQ(train.report().tokens + eval.report().tokens, 97);
  EXPECT_THROW(load(files.write("b.txt", "short")).split(0.5, 0, 10), InputError);
}

TEST(Dataset, FingerprintFollowsTokensMasksAndOrder) {
  Files files;
  const auto fingerprint = [&](const std::string& lines) { return load(files.write("a.jsonl", lines)).fingerprint(); };
  const std::string a = R"({"prompt": "a", "completion": "b"})", c = R"({"prompt": "c", "completion": "d"})";
  const std::string one = fingerprint(a + "\n" + c + "\n");
  EXPECT_EQ(one.size(), 16u);
  EXPECT_EQ(one, fingerprint(a + "\r\n\r\n" + c));
  EXPECT_NE(one, fingerprint(c + "\n" + a + "\n"));
  EXPECT_NE(one, fingerprint(a + "\n"));
  EXPECT_NE(fingerprint(a), fingerprint(R"({"prompt": "", "completion": "ab"})")) << "same tokens, another mask";
}

TEST(Dataset, ARecordOfSeveralSamplesIsAGroupOrNothing) {
  Files files;
  DataOptions options;
  options.max_length = 4;
  options.truncate = Truncate::drop;
  options.max_dropped = 1;
  const Dataset dataset =
      load(files.write("a.jsonl", R"({"input_ids": [[97, 98], [97, 99, 100]]})"
                                  "\n"
                                  R"({"input_ids": [[97, 98], [97, 98, 99, 100, 101]]})"
                                  "\n"
                                  R"({"input_ids": [[97, 98], [97, 99]], "labels": [[97, 98], [97, -100]]})"
                                  "\n"
                                  R"({"input_ids": [97, 101]})"
                                  "\n"),
           options);
  EXPECT_THAT(all(dataset), ElementsAre("ab", "acd", "ae"));
  EXPECT_EQ(dataset.report().dropped_long, 1);
  EXPECT_EQ(dataset.report().dropped_untrained, 1);
  EXPECT_FALSE(dataset.continues_group(0));
  EXPECT_TRUE(dataset.continues_group(1));
  EXPECT_FALSE(dataset.continues_group(2));
}

TEST(Dataset, KnowsWhereTheRecordOfASampleStands) {
  Files files;
  const std::string first = files.write("d/1.jsonl", "\nno record\n" + numbered_lines(2) + "\n" + numbered_lines(1));
  const std::string second = files.write("d/2.json", "[\n {\"text\": \"c\"},\n  {\"text\": \"d\"}]");
  DataOptions options;
  options.skip_bad = 1;
  const Dataset dataset = load(files.path("d"), options);
  std::vector<std::string> places;
  for (int64_t i = 0; i < dataset.size(); ++i) places.push_back(dataset.place(i));
  const std::vector<std::string> wanted = {first + ":3:1", first + ":4:1", first + ":6:1", second + ":2:2",
                                           second + ":3:3"};
  EXPECT_EQ(places, wanted);
  const auto [train, eval] = dataset.split(0.2, 7, 64);
  for (const Dataset* part : {&train, &eval}) {
    for (int64_t i = 0; i < part->size(); ++i) EXPECT_EQ(part->place(i), wanted[part->info(i).record - 1]);
  }
}

TEST(Dataset, PreviewShowsTokensAndWhatIsTrained) {
  Files files;
  const Dataset dataset = load(files.write("a.jsonl", R"({"prompt": "a", "completion": "b"})"));
  const SamplePreview preview = dataset.preview(0, byte_encoder());
  EXPECT_THAT(preview.ids, ElementsAre(256, 'a', 'b', 257));
  EXPECT_THAT(preview.texts, ElementsAre("^", "a", "b", "$"));
  EXPECT_THAT(preview.trained, ElementsAre(false, false, true, true));
}

TEST(DataOptions, ValuesOutOfRangeAreNamedByTheirKey) {
  DataOptions good;
  good.train = {{"a.jsonl", 1.0}};
  EXPECT_NO_THROW(check_data_options(good));
  const auto message = [&](const std::function<void(DataOptions&)>& change) {
    DataOptions options = good;
    change(options);
    return error_of<UsageError>([&] { check_data_options(options); });
  };
  EXPECT_THAT(message([](DataOptions& o) { o.train.clear(); }), HasSubstr("data.train"));
  EXPECT_THAT(message([](DataOptions& o) { o.train[0].weight = 0; }), HasSubstr("data.train"));
  EXPECT_THAT(message([](DataOptions& o) { o.train[0].weight = std::nan(""); }), HasSubstr("data.train"));
  EXPECT_THAT(message([](DataOptions& o) { o.eval_fraction = 1; }), HasSubstr("data.eval_fraction"));
  EXPECT_THAT(message([](DataOptions& o) { o.max_length = 1; }), HasSubstr("data.max_length"));
  EXPECT_THAT(message([](DataOptions& o) { o.max_dropped = 1.5; }), HasSubstr("data.max_dropped"));
  EXPECT_THAT(error_of<UsageError>([] { parse_data_format("csv"); }), HasSubstr("data.format: \"csv\" is not known"));
  EXPECT_EQ(parse_data_format("chat"), DataFormat::chat);
  EXPECT_EQ(parse_truncate("drop"), Truncate::drop);
}

}  // namespace
}  // namespace nibble
