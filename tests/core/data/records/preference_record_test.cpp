#include "nibble/core/data/records/preference_record.h"

#include <gmock/gmock.h>

#include <cmath>

#include "nibble/core/base/error.h"
#include "nibble/tests/core/data/byte_encoder.h"

namespace nibble {
namespace {

using namespace test;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

/// byte_encoder() whose template writes `prompt_end` behind a prompt.
Encoder chat_encoder(const std::string& prompt_end = "") {
  Encoder encoder = byte_encoder();
  encoder.render_text = [render = encoder.render_chat, prompt_end](Conversation chat, bool add_generation_prompt) {
    return render(chat).text + (add_generation_prompt ? prompt_end : "");
  };
  return encoder;
}

/// The samples of a data set of one file, untrained tokens as "_".
std::vector<std::string> samples_of(const std::string& lines, DataFormat format, DataOptions options = {},
                                    const Encoder& encoder = chat_encoder()) {
  Files files;
  options.format = format;
  const Dataset dataset = load(files.write("data.jsonl", lines), options, encoder);
  std::vector<std::string> all;
  for (int64_t i = 0; i < dataset.size(); ++i) all.push_back(shown(dataset.sample(i), true));
  return all;
}

TEST(Preferences, AreTwoAnswersToOnePromptThatEndWithEos) {
  EXPECT_THAT(samples_of(R"({"prompt": "ab", "chosen": "cd", "rejected": "e$"})", DataFormat::preference),
              ElementsAre("___cd$", "___e$"));
  EXPECT_THAT(samples_of(R"({"prompt": "ab", "chosen": "", "rejected": "e"})", DataFormat::preference),
              ElementsAre("___$", "___e$"));
}

TEST(Preferences, StandTogetherAsAGroup) {
  Files files;
  DataOptions options;
  options.format = DataFormat::preference;
  const std::string pair = R"({"prompt": "ab", "chosen": "cd", "rejected": "e", "margin": 0.75})";
  const Dataset dataset = load(files.write("data.jsonl", pair + "\n" + pair), options);
  ASSERT_EQ(dataset.size(), 4);
  EXPECT_TRUE(dataset.continues_group(1) && !dataset.continues_group(2) && dataset.continues_group(3));
  EXPECT_THAT(dataset.sample(2).values, ElementsAre(0.75f));
  EXPECT_THAT(dataset.sample(3).values, IsEmpty());
  EXPECT_EQ(dataset.report().pairs, 2);
}

TEST(Preferences, RefuseAMarginThatNoFloatHolds) {
  Files files;
  DataOptions options;
  options.format = DataFormat::preference;
  const std::string pair = R"({"prompt": "ab", "chosen": "cd", "rejected": "e", "margin": 1)";
  const auto path = files.write("data.jsonl", pair + "}\n" + pair + "e300}");
  EXPECT_THAT(test::error_of<InputError>([&] { load(path, options); }),
              HasSubstr("data.jsonl:2:1: has the margin 1e+300, which no 32-bit float holds; give less than 3.4e+38"));
}

TEST(Rollouts, MayHaveNoRewardButMustNameIt) {
  Files files;
  DataOptions options;
  options.format = DataFormat::rollouts;
  options.needs_reward = true;
  const std::string answer = R"({"prompt_ids": [1], "completion_ids": [2])";
  const Dataset dataset = load(files.write("a.jsonl", answer + R"(, "reward": null})"), options);
  EXPECT_TRUE(std::isnan(dataset.sample(0).values.front()));
  const auto path = files.write("b.jsonl", answer + "}");
  EXPECT_THAT(test::error_of<InputError>([&] { load(path, options); }), HasSubstr("b.jsonl:1:1: has no \"reward\""));
  const auto few = files.write("c.jsonl", answer + R"(, "reward": 1, "old_logprobs": []})");
  EXPECT_THAT(test::error_of<InputError>([&] { load(few, options); }),
              HasSubstr("has 1 completion_ids, but 0 old_logprobs; give one to each"));
}

TEST(Preferences, PromptsEndWhereBothAnswersHaveIt) {
  // The template writes what the answers do not have: that end of the prompt is left out.
  const std::string pair =
      R"({"prompt": [{"role": "user", "content": "q"}], "chosen": [{"role": "assistant", "content": "<t>a"}],)"
      R"( "rejected": [{"role": "assistant", "content": "<b"}]})";
  EXPECT_THAT(samples_of(pair, DataFormat::preference, {}, chat_encoder("<t>")), ElementsAre("____t>a!\n", "____b!\n"));
  Files files;
  DataOptions options;
  options.format = DataFormat::preference;
  EXPECT_EQ(load(files.write("a.jsonl", pair), options, chat_encoder("<t>")).report().cut_prompts, 1);
  EXPECT_EQ(load(files.write("b.jsonl", pair), options, chat_encoder("<")).report().cut_prompts, 0);
}

TEST(Preferences, WithoutAPromptHaveWhatBothBeginWith) {
  EXPECT_THAT(samples_of(R"({"chosen": "it is red", "rejected": "it is blue"})", DataFormat::preference),
              ElementsAre("______ red$", "______ blue$"));
  // é and è share their first byte.
  Files files;
  DataOptions options;
  options.format = DataFormat::preference;
  const Dataset dataset = load(files.write("data.jsonl", "{\"chosen\": \"xé\", \"rejected\": \"xè\"}"), options);
  EXPECT_EQ(dataset.info(0).trained, 3u) << "both bytes, and EOS";
  const std::string turns = R"([{"role": "user", "content": "q"}, {"role": "assistant", "content": ")";
  EXPECT_THAT(samples_of("{\"chosen\": " + turns + "a\"}], \"rejected\": " + turns + "b\"}]}", DataFormat::preference),
              ElementsAre("___a!\n", "___b!\n"));
}

TEST(Preferences, WithoutAPromptKeepTurnsThatDifferInWhatTheTemplateMayShow) {
  Encoder encoder = chat_encoder();
  std::vector<std::string> seen;
  encoder.render_text = [&](const Conversation& chat, bool) {
    seen.emplace_back();
    for (const ChatMessage& message : chat.messages) seen.back() += message.json;
    return seen.back();
  };
  const auto turns = [](const std::string& name) {
    return R"([{"role": "user", "content": "q", "name": ")" + name + R"("}, {"role": "assistant", "content": "a"}])";
  };
  samples_of(R"({"chosen": )" + turns("Ann") + R"(, "rejected": )" + turns("Bob") + "}", DataFormat::preference, {},
             encoder);
  EXPECT_THAT(seen, Contains(HasSubstr("Ann")));
  EXPECT_THAT(seen, Contains(HasSubstr("Bob")));
}

TEST(Preferences, TakeTextAndMessagesTogether) {
  const std::string answers =
      R"("chosen": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}],)"
      R"( "rejected": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "b"}])";
  EXPECT_THAT(samples_of("{\"prompt\": \"q\", " + answers + "}", DataFormat::preference),
              ElementsAre("___a!\n", "___b!\n"))
      << "the prompt is written three times";
  EXPECT_THAT(samples_of(R"({"prompt": [{"role": "user", "content": "q"}], "chosen": "a", "rejected": "b"})",
                         DataFormat::preference),
              ElementsAre("___a!\n", "___b!\n"));
}

TEST(Preferences, OfOtherToolsHaveTheirPromptBesideTheAnswers) {
  const std::string answers = R"("chosen": {"role": "assistant", "content": "a"},)"
                              R"( "rejected": {"role": "assistant", "content": "b"})",
                    texts = R"("chosen": "a", "rejected": "b")";
  const std::string share_gpt =
      R"("conversations": [{"from": "human", "value": "q"}],)"
      R"( "chosen": {"from": "gpt", "value": "a"}, "rejected": {"from": "gpt", "value": "b"})";
  const std::string ask = R"([{"role": "user", "content": "q"}])",
                    good = R"([{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}])",
                    bad = R"([{"role": "user", "content": "q"}, {"role": "assistant", "content": "b"}])";
  for (const std::string& fields : {
           "\"prompt\": " + ask + ", " + answers,
           "\"messages\": " + ask + ", " + answers,
           "\"messages\": " + ask + ", " + texts,
           share_gpt,
           "\"input\": {\"messages\": " + ask + R"(}, "preferred_output": [{"role": "assistant", "content": "a"}],)" +
               R"( "non_preferred_output": [{"role": "assistant", "content": "b"}])",
           "\"messages\": " + good + ", \"chosen\": " + good + ", \"rejected\": " + bad,
       }) {
    EXPECT_THAT(samples_of("{" + fields + "}", DataFormat::preference), ElementsAre("___a!\n", "___b!\n")) << fields;
  }
  EXPECT_THAT(samples_of("{\"system\": \"s\", " + share_gpt + "}", DataFormat::preference),
              ElementsAre("______a!\n", "______b!\n"));
  DataOptions options;
  options.fields = {{"prompt", "conversations"}};
  EXPECT_THAT(samples_of("{" + share_gpt + "}", DataFormat::preference, options), ElementsAre("___a!\n", "___b!\n"));
}

TEST(Preferences, MayAnswerAlpacasInstruction) {
  const std::string pair = R"({"instruction": "i", "input": "n", "history": [], "chosen": "a", "rejected": "b"})";
  DataOptions options;
  const auto trained = [](const std::string& sample) { return sample.substr(sample.find_last_of('_') + 1); };
  std::vector<std::string> samples = samples_of(pair, DataFormat::preference);
  EXPECT_THAT((std::vector{trained(samples[0]), trained(samples[1])}), ElementsAre("a$", "b$"));
  EXPECT_EQ(samples[0].size(), 1 + alpaca_prompt("i", "n").size() + 2);
  options.chat_template = "chatml";
  EXPECT_THAT(samples_of(pair, DataFormat::preference, options), ElementsAre("_____a!\n", "_____b!\n"));
}

TEST(Preferences, OfWhichNoPromptIsKnownAreRefused) {
  const auto refused = [](const std::string& line, const std::string& chat_template = "") {
    DataOptions options;
    options.chat_template = chat_template;
    return error_of<InputError>([&] { samples_of(line, DataFormat::preference, options); });
  };
  const std::string texts = R"("chosen": "q a", "rejected": "q b"})";
  EXPECT_THAT(
      refused("{" + texts, "chatml"),
      HasSubstr(":1:1: has text and no \"prompt\": no turns for a chat template; give it a prompt, or messages; "
                "or leave data.template (--template) out: then what both texts begin with is the prompt"));
  EXPECT_THAT(refused(R"({"question": "q", )" + texts), HasSubstr("set data.fields={\"prompt\": \"question\"}"));
  EXPECT_THAT(
      refused(R"({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}], )" + texts),
      HasSubstr("has an answer at the end of its messages, which are the prompt of \"chosen\""));
}

TEST(Preferences, OfIdsAreTakenAsTheyAre) {
  EXPECT_THAT(
      samples_of(R"({"prompt_ids": [97, 98], "chosen_ids": [99], "rejected_ids": [100, 257]})", DataFormat::preference),
      ElementsAre("__c", "__d$"));
}

TEST(Preferences, AreCutAtTheirEndAndDroppedWhereNoAnswerIsLeft) {
  DataOptions options;
  options.max_length = 5;
  options.truncate = Truncate::cut;
  options.max_dropped = 1;
  EXPECT_THAT(samples_of("{\"prompt\": \"ab\", \"chosen\": \"cdef\", \"rejected\": \"e\"}\n"
                         "{\"prompt\": \"abcd\", \"chosen\": \"e\", \"rejected\": \"f\"}",
                         DataFormat::preference, options),
              ElementsAre("___cd", "___e$"));
}

TEST(Preferences, ThatCannotBeAreRefusedWithTheirPlace) {
  const auto refused = [](const std::string& line, DataFormat format) {
    return error_of<InputError>([&] { samples_of(line, format); });
  };
  EXPECT_THAT(refused(R"({"prompt": "a", "chosen": "b"})", DataFormat::preference), HasSubstr("\"rejected\""));
  EXPECT_THAT(refused(R"({"prompt": "a", "completion": "b"})", DataFormat::unpaired), HasSubstr("label"));
  EXPECT_THAT(refused(R"({"prompt": "a", "completion": "b", "label": 0.5})", DataFormat::unpaired), HasSubstr("0.5"));
  EXPECT_THAT(refused(R"({"completion": "b", "label": true})", DataFormat::unpaired), HasSubstr("\"prompt\""));
  EXPECT_THAT(refused(R"({"prompt_ids": [1], "chosen_ids": [999], "rejected_ids": [1]})", DataFormat::preference),
              HasSubstr("chosen_ids[0] is 999"));
  EXPECT_THAT(refused(R"({"text": "a", "label": 1})", DataFormat::preference),
              HasSubstr("is no pair of a better and a worse answer: it has a \"label\"; it is read as labeled, for "
                        "objective.type classification (score: --format labeled)"));
  EXPECT_THAT(refused(R"({"prompt": "a", "completion": "b", "label": true})", DataFormat::preference),
              HasSubstr("--format unpaired"));
  EXPECT_THAT(refused(R"({"prompt_ids": [], "chosen_ids": [], "rejected_ids": [1]})", DataFormat::preference),
              HasSubstr("chosen_ids"));
  EXPECT_THAT(refused(R"({"prompt_ids": []})", DataFormat::prompts),
              HasSubstr("field \"prompt_ids\" is empty; correct the record, or set data.skip_bad"));
}

/// A built-in template, which has no form for tools, documents, calls and reasoning.
Encoder plain_encoder() {
  const std::shared_ptr<const ChatTemplate> plain = builtin_chat_template("plain", {});
  Encoder encoder = byte_encoder();
  encoder.render_chat = [plain](const Conversation& chat) { return plain->render(chat); };
  encoder.render_text = [plain](const Conversation& chat, bool generates) {
    return plain->render(chat, generates).text;
  };
  encoder.hidden_parts = [plain](const Conversation& chat) { return plain->hidden_parts(chat); };
  return encoder;
}

TEST(HiddenParts, OfEveryFormatWithMessagesAreRefusedOrLeftOutAndCounted) {
  const std::string thought = R"([{"role": "assistant", "content": "a", "reasoning_content": "r"}])";
  const std::string ask = R"([{"role": "user", "content": "q"}])",
                    answer = R"([{"role": "assistant", "content": "b"}])";
  const std::string turns = R"([{"role": "user", "content": "q"}, {"role": "assistant", "content": "a", "tool_calls": )"
                            R"([{"function": {"name": "f", "arguments": {}}}]}, {"role": "user", "content": "p"}])";
  const struct {
    DataFormat format;
    std::string fields, part;
  } cases[] = {
      {DataFormat::preference, "\"prompt\": " + ask + ", \"chosen\": " + answer + ", \"rejected\": " + thought,
       "reasoning in rejected[0]"},
      {DataFormat::preference, "\"prompt\": " + turns + ", \"chosen\": " + answer + ", \"rejected\": \"c\"",
       "tool calls in prompt[1]"},
      {DataFormat::preference, R"("tools": [{"name": "f"}], "prompt": "q", "chosen": "c", "rejected": )" + answer,
       "a list of tools"},
      {DataFormat::unpaired, "\"label\": true, \"prompt\": " + ask + ", \"completion\": " + thought,
       "reasoning in completion[0]"},
      {DataFormat::labeled, "\"label\": 1, \"messages\": " + thought, "reasoning in messages[0]"},
      {DataFormat::prompts, "\"documents\": [{\"text\": \"d\"}], \"prompt\": " + ask, "documents"},
      {DataFormat::prompts, "\"prompt\": " + turns, "tool calls in prompt[1]"},
  };
  for (const auto& [format, fields, part] : cases) {
    Files files;
    DataOptions options;
    options.format = format;
    const std::string path = files.write("d.jsonl", "{" + fields + "}");
    EXPECT_EQ(error_of<InputError>([&] { load(path, options, plain_encoder()); }),
              path + ":1:1: has " + part +
                  ", which the chat template does not show; choose a data.template (--template) that does, or leave "
                  "such parts out: data.hidden_parts=drop (--hidden-parts drop)");
    options.hidden_parts = HiddenParts::drop;
    EXPECT_EQ(load(path, options, plain_encoder()).report().hidden_parts, 1) << fields;
  }
}

// Beside a prompt of every kind; where the prompt has it already it is there once.
TEST(HiddenParts, SystemMessagesStandBeforeThePrompt) {
  const std::string system = R"("system": "s", )", texts = R"("chosen": "a", "rejected": "b"})";
  const std::string ask = R"([{"role": "user", "content": "q"}])";
  const std::string whole = R"([{"role": "system", "content": "s"}, {"role": "user", "content": "q"}])";
  DataOptions options;
  options.chat_template = "chatml";
  for (const std::string& prompt : {std::string("\"q\""), ask, whole}) {
    const std::string fields = "{" + system + "\"prompt\": " + prompt;
    EXPECT_THAT(samples_of(fields + ", " + texts, DataFormat::preference, options),
                ElementsAre("______a!\n", "______b!\n"))
        << prompt;
    EXPECT_THAT(samples_of(fields + R"(, "completion": "a", "label": true})", DataFormat::unpaired, options),
                ElementsAre("______a!\n"))
        << prompt;
    EXPECT_THAT(samples_of(fields + "}", DataFormat::prompts, options), ElementsAre("______")) << prompt;
  }
  for (const std::string& messages : {ask, whole}) {
    EXPECT_THAT(samples_of("{" + system + "\"messages\": " + messages + ", " + texts, DataFormat::preference, options),
                ElementsAre("______a!\n", "______b!\n"))
        << messages;
  }
}

TEST(HiddenParts, OfTextsWithoutATemplateAreRefusedOrLeftOutAndCounted) {
  const std::pair<std::string, std::string> parts[] = {{R"("system": "s")", "a system prompt"},
                                                       {R"("tools": [{"name": "f"}])", "a list of tools"},
                                                       {R"("documents": [{"text": "d"}])", "documents"}};
  const std::pair<DataFormat, std::string> records[] = {
      {DataFormat::preference, R"("prompt": "q", "chosen": "a", "rejected": "b")"},
      {DataFormat::preference, R"("chosen": "q a", "rejected": "q b")"},
      {DataFormat::unpaired, R"("prompt": "q", "completion": "a", "label": true)"},
      {DataFormat::prompts, R"("prompt": "q")"}};
  for (const auto& [format, fields] : records) {
    for (const auto& [part, name] : parts) {
      Files files;
      DataOptions options;
      options.format = format;
      const std::string path = files.write("d.jsonl", "{" + part + ", " + fields + "}");
      EXPECT_THAT(error_of<InputError>([&] { load(path, options); }),
                  HasSubstr(":1:1: has " + name + ", which a text without a chat template does not show; "))
          << fields;
      options.hidden_parts = HiddenParts::drop;
      EXPECT_EQ(load(path, options).report().hidden_parts, 1) << fields;
    }
  }
  DataOptions options;
  const std::string alpaca = R"({"system": "s", "instruction": "i", "chosen": "a", "rejected": "b"})";
  EXPECT_EQ(samples_of(alpaca, DataFormat::preference, options).size(), 2u) << "Alpaca's prompt has a place for it";
}

TEST(Unpaired, AnswersHaveTheirVerdict) {
  Files files;
  DataOptions options;
  options.format = DataFormat::unpaired;
  const Dataset dataset = load(files.write("data.jsonl",
                                           "{\"prompt\": \"a\", \"completion\": \"b\", \"label\": true}\n"
                                           "{\"prompt\": \"a\", \"completion\": \"c\", \"label\": \"False\"}\n"
                                           "{\"prompt\": \"a\", \"completion\": \"d\", \"label\": 1}"),
                               options);
  ASSERT_EQ(dataset.size(), 3);
  for (const int64_t i : {0, 1, 2}) EXPECT_THAT(dataset.sample(i).values, ElementsAre(i == 1 ? 0.0f : 1.0f));
  EXPECT_EQ(shown(dataset.sample(1), true), "__c$");
  EXPECT_FALSE(dataset.continues_group(1));
}

TEST(Unpaired, AnswersOfLlamaFactoryAreTheLastMessageOrAlpacasOutput) {
  const std::string turns = R"("messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}])";
  DataOptions options;
  options.format = DataFormat::unpaired;
  options.chat_template = "chatml";
  for (const std::string& fields :
       {turns, std::string(R"("conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}])"),
        std::string(R"("instruction": "q", "output": "a")"), std::string(R"("prompt": "q", "completion": "a")"),
        R"("prompt": "q", "completion": )" + turns.substr(turns.find('['))}) {
    for (const char* label : {"\"kto_tag\": false", "\"label\": false", "\"kto_tag\": true"}) {
      Files files;
      const Dataset dataset = load(files.write("d.jsonl", "{" + fields + ", " + label + "}"), options, chat_encoder());
      EXPECT_EQ(shown(dataset.sample(0), true), "___a!\n") << fields;
      EXPECT_THAT(dataset.sample(0).values, ElementsAre(std::string(label).ends_with("true") ? 1.0f : 0.0f)) << label;
    }
  }
  const std::string ask = R"({"messages": [{"role": "user", "content": "q"}], "kto_tag": true})";
  EXPECT_THAT(error_of<InputError>([&] { samples_of(ask, DataFormat::unpaired); }),
              HasSubstr("has no prompt and answer in its messages; let the answer be the last one"));
}

TEST(Labeled, TextsHaveNumbers) {
  Files files;
  DataOptions options;
  options.format = DataFormat::labeled;
  const Dataset dataset = load(files.write("data.jsonl",
                                           "{\"text\": \"ab\", \"label\": 2}\n"
                                           "{\"input_ids\": [97, 98], \"label\": [1.5, 0]}"),
                               options);
  EXPECT_THAT(dataset.sample(0).values, ElementsAre(2.0f));
  EXPECT_THAT(dataset.sample(1).values, ElementsAre(1.5f, 0.0f));
}

TEST(Labeled, ATextIsAUserTurnOfATemplateThatIsAskedFor) {
  Files files;
  DataOptions options;
  options.format = DataFormat::labeled;
  options.chat_template = "plain";
  const std::string line = "{\"text\": \"ab\", \"label\": 2}";
  const Dataset dataset = load(files.write("text.jsonl", line), options, plain_encoder());
  const Dataset turns =
      load(files.write("turns.jsonl", R"({"messages": [{"role": "user", "content": "ab"}], "label": 2})"), options,
           plain_encoder());
  EXPECT_EQ(shown(dataset.sample(0)), shown(turns.sample(0)));
  EXPECT_THAT(shown(dataset.sample(0)), HasSubstr("ab"));
}

TEST(PreferenceData, ValuesSurviveSplittingAndTheCache) {
  Files files;
  std::string lines;
  for (int i = 0; i < 8; ++i) {
    lines += "{\"prompt\": \"p\", \"completion\": \"" + std::string(1, static_cast<char>('a' + i)) +
             "\", \"label\": " + (i % 3 == 0 ? "true" : "false") + "}\n";
  }
  DataOptions options;
  options.format = DataFormat::unpaired;
  Encoder encoder = byte_encoder();
  encoder.fingerprint = "bytes";
  const std::string path = files.write("data.jsonl", lines);
  const Dataset plain = load(path, options, encoder);
  options.cache = files.path("cache");
  std::filesystem::create_directories(options.cache);
  for (int round = 0; round < 2; ++round) {  // made, then found
    const Dataset cached = load(path, options, encoder);
    EXPECT_EQ(cached.fingerprint(), plain.fingerprint());
    for (int64_t i = 0; i < 8; ++i) EXPECT_EQ(cached.sample(i).values, plain.sample(i).values);
    EXPECT_EQ(cached.report().good_verdicts, 3);
  }
  const auto [rest, held] = plain.split(0.25, 1, 64);
  for (const Dataset* part : {&rest, &held}) {
    for (int64_t i = 0; i < part->size(); ++i) {
      const Sample sample = part->sample(i);
      EXPECT_EQ(sample.values.front() != 0, (sample.ids[2] - 'a') % 3 == 0);
    }
  }
  const std::string other = files.write("other.jsonl", lines.replace(lines.find("true"), 4, "false"));
  EXPECT_NE(load(other, options, encoder).fingerprint(), plain.fingerprint()) << "a verdict is part of the data";
}

TEST(PreferenceData, IsExaminedForWhatTeachesNothing) {
  Files files;
  std::string lines;
  for (int i = 0; i < 24; ++i)
    lines += R"({"prompt": "p", "chosen": "a long answer", "rejected": "no"})" + std::string("\n");
  lines += R"({"prompt": "p", "chosen": "same", "rejected": "same"})";
  DataOptions options;
  options.format = DataFormat::preference;
  options.truncate = Truncate::cut;
  options.max_length = 14;
  const DatasetReport report = load(files.write("pairs.jsonl", lines), options).report();
  EXPECT_EQ(report.identical_pairs, 1);
  EXPECT_EQ(report.cut_answers, 24);
  EXPECT_EQ(report.longer_chosen, 24);
  const auto warned = [](const DatasetReport& of, const std::string& what) {
    return std::ranges::any_of(of.warnings, [&](const std::string& w) { return w.find(what) != std::string::npos; });
  };
  EXPECT_TRUE(warned(report, "1 pair has the same answer"));
  EXPECT_TRUE(warned(report, "24 answers lose their end"));
  EXPECT_TRUE(warned(report, "may learn the length alone"));
  options.max_length = 64;
  const std::string more = files.write(
      "more.jsonl",
      R"({"prompt": "Who?", "chosen": "Who? I.", "rejected": "No."})"
      "\n"
      R"({"prompt": [{"role": "user", "content": "a"}], "rejected": [{"role": "assistant", "content": "c"}], "chosen": )"
      R"([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]})");
  const DatasetReport asked = load(more, options, chat_encoder()).report();
  EXPECT_EQ(asked.trained_questions, 2);
  EXPECT_TRUE(warned(asked, "2 records have an answer that begins with what was asked"));
  options.chat_template = "chatml";
  EXPECT_EQ(load(more, options, chat_encoder()).report().trained_questions, 2) << "of texts that become turns too";
  options.chat_template.clear();
  options.format = DataFormat::unpaired;
  const std::string verdicts = files.write("verdicts.jsonl", R"({"prompt": "p", "completion": "a", "label": false})");
  EXPECT_TRUE(warned(load(verdicts, options).report(), "all answers are labelled as bad"));
}

TEST(PreferenceData, OfMostlyEqualAnswersIsRefused) {
  Files files;
  DataOptions options;
  options.format = DataFormat::preference;
  const std::string path = files.write("pairs.jsonl", R"({"prompt": "p", "chosen": "same", "rejected": "same"})"
                                                      "\n"
                                                      R"({"prompt": "p", "chosen": "", "rejected": ""})"
                                                      "\n"
                                                      R"({"prompt": "p", "chosen": "a", "rejected": "b"})");
  EXPECT_THAT(
      error_of<InputError>([&] { load(path, options); }),
      HasSubstr(
          "2 of 3 records are dropped or empty or equal (1 train the end alone of an empty answer or text, 1 with "
          "the same answer as chosen and as rejected, 0 without a trained token, 0 too long)"));
  options.max_dropped = 0.7;
  EXPECT_EQ(load(path, options).report().pairs, 3);
}

// Their number is what the user allowed.
TEST(PreferenceData, MalformedRecordsDoNotCountAsDropped) {
  Files files;
  DataOptions options;
  options.format = DataFormat::preference;
  options.skip_bad = 3;
  const std::string path =
      files.write("pairs.jsonl", "x\nx\nx\n{\"prompt\": \"p\", \"chosen\": \"a\", \"rejected\": \"b\"}");
  EXPECT_EQ(load(path, options).report().bad_records, 3);
  const std::string equal =
      files.write("equal.jsonl", "x\nx\nx\n{\"prompt\": \"p\", \"chosen\": \"a\", \"rejected\": \"a\"}");
  EXPECT_THAT(error_of<InputError>([&] { load(equal, options); }), HasSubstr("1 of 1 record is dropped or equal"))
      << "nor do they count as kept";
}

}  // namespace
}  // namespace nibble
