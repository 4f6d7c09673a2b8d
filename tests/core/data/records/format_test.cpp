#include "nibble/core/data/records/format.h"

#include <gmock/gmock.h>

#include "nibble/core/base/error.h"
#include "nibble/tests/core/data/byte_encoder.h"

namespace nibble {
namespace {

using test::byte_encoder;
using test::error_of;
using test::shown;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

Sample encode(const std::string& json, DataFormat format, const DataOptions& options = {},
              const Encoder& encoder = byte_encoder()) {
  const EncodedRecord encoded = encode_record(render_record("f", {json, 1, 1}, format, options, encoder), encoder);
  return {encoded.ids, encoded.labels, 0};
}

DataFormat detect(const std::string& json) { return detect_format("f", {json, 1, 1}, {}); }

TEST(Format, IsKnownByTheFields) {
  EXPECT_EQ(detect(R"({"instruction": "i", "input": "", "output": "o"})"), DataFormat::alpaca);
  EXPECT_EQ(detect(R"({"messages": []})"), DataFormat::chat);
  EXPECT_EQ(detect(R"({"conversations": [], "system": "s"})"), DataFormat::chat);
  EXPECT_EQ(detect(R"({"prompt": "p", "completion": "c"})"), DataFormat::completion);
  EXPECT_EQ(detect(R"({"question": "q", "answer": "a"})"), DataFormat::completion);
  EXPECT_EQ(detect(R"({"text": "t", "meta": {}})"), DataFormat::text);
  EXPECT_EQ(detect(R"({"input_ids": [1], "text": "t"})"), DataFormat::tokens);
  EXPECT_THROW(detect(R"({"a": 1, "b": 2})"), InputError);
  EXPECT_THROW(detect(R"({"conversations": [], "chosen": {}, "rejected": {}})"), InputError);
}

TEST(Format, ATurnFromNobodyHasARole) {
  EXPECT_EQ(shown(encode(R"({"messages": [{"from": null, "value": null, "role": "user", "content": "u"},
                             {"role": null, "content": null, "from": "gpt", "value": "a"}]})",
                         DataFormat::chat)),
            "[u]a!\n");
}

TEST(Format, AlpacaTrainsTheOutputAndEosAfterStanfordsPrompt) {
  const Sample sample = encode(R"({"instruction": "Add.", "input": "1 2", "output": "3\n"})", DataFormat::alpaca);
  EXPECT_EQ(shown(sample),
            "^Below is an instruction that describes a task, paired with an input that provides further context. Write "
            "a response that appropriately completes the request.\n\n### Instruction:\nAdd.\n\n### Input:\n1 2\n\n### "
            "Response:\n3\n$");
  EXPECT_EQ(shown(sample, true), std::string(sample.ids.size() - 3, '_') + "3\n$");
  const Sample bare = encode(R"({"instruction": "Add.", "system": "S", "output": "3"})", DataFormat::alpaca);
  EXPECT_EQ(shown(bare), "^S\n\n### Instruction:\nAdd.\n\n### Response:\n3$");
}

TEST(Format, AlpacaFollowsAChatTemplateWhereOneIsAskedFor) {
  DataOptions options;
  options.chat_template = "some";
  const Sample sample =
      encode(R"({"instruction": "add", "input": "1", "output": "x", "system": "s", "history": [["a", "b"]]})",
             DataFormat::alpaca, options);
  EXPECT_EQ(shown(sample), "{s}[a]b!\n[add\n1]x!\n");
  EXPECT_EQ(shown(sample, true), "______b!________x!_");
}

TEST(Format, CompletionTrainsWhatFollowsThePrompt) {
  EXPECT_EQ(shown(encode(R"({"prompt": "ab", "completion": "cd"})", DataFormat::completion), true), "___cd$");
  EXPECT_EQ(shown(encode(R"({"prompt": "ab", "response": "cd"})", DataFormat::completion), true), "___cd$");
  const Sample question = encode(R"({"question": "q?", "answer": "a"})", DataFormat::completion);
  EXPECT_EQ(shown(question), "^Question: q?\nAnswer: a$");
  EXPECT_EQ(shown(question, true), "_____________________ a$");
}

TEST(Format, TrainOnPromptTrainsEverythingButBos) {
  DataOptions options;
  options.train_on_prompt = true;
  EXPECT_EQ(shown(encode(R"({"prompt": "ab", "completion": "cd"})", DataFormat::completion, options), true), "_abcd$");
  EXPECT_EQ(shown(encode(R"({"messages": [{"role": "user", "content": "u"}, {"role": "assistant", "content": "a"}]})",
                         DataFormat::chat, options),
                  true),
            "[u]a!\n");
}

TEST(Format, FieldsRenameOursToTheFiles) {
  DataOptions options;
  options.fields = {{"prompt", "q"}, {"completion", "a"}};
  EXPECT_EQ(shown(encode(R"({"q": "ab", "a": "cd"})", DataFormat::completion, options), true), "___cd$");
  EXPECT_EQ(detect_format("f", {R"({"q": "ab", "a": "cd"})", 1, 1}, options), DataFormat::completion);
}

TEST(Format, ANameOfAColumnThatIsNotThereIsReported) {
  DataOptions options;
  options.fields = {{"completion", "answer"}, {"prompt", "q"}};
  EXPECT_THAT(error_of<InputError>([&] {
                detect_format("f", {R"({"q": "ab", "a": "cd"})", 1, 1}, options);
              }),
              HasSubstr("data.fields (--fields) calls completion \"answer\", which is not there; the record has \"q\", "
                        "\"a\""));
}

TEST(Format, AFieldThatNoRecordHasOrThatTheFormatHasNoUseForIsRefused) {
  const auto refused = [](const std::map<std::string, std::string>& fields, const std::string& json,
                          DataFormat format = DataFormat::completion) {
    DataOptions options;
    options.fields = fields;
    const std::vector<RawRecord> records = {{R"({"question": "q", "answer": "a"})", 1, 1}, {json, 2, 1}};
    try {
      std::set<std::string> used;
      check_fields("f", records, format, options, byte_encoder(), false, used);
    } catch (const InputError& error) {
      return std::string(error.what());
    }
    return std::string("taken");
  };
  const std::string same = R"({"question": "q", "answer": "a"})",
                    other = R"({"question": "q", "answer": "a", "to": []})";
  EXPECT_THAT(refused({{"prompt", "quest"}, {"completion", "answer"}}, same),
              HasSubstr("f:1:1: data.fields (--fields) calls prompt \"quest\", which is not there; the record has "));
  EXPECT_THAT(refused({{"promp", "question"}}, same),
              HasSubstr("names \"promp\", which the format completion has no use for; did you mean prompt?"));
  EXPECT_THAT(refused({{"text", "question"}}, same), HasSubstr("leave it out, or name data.format"));
  EXPECT_EQ(refused({{"tools", "to"}}, other), "taken") << "a later record has it";
  EXPECT_EQ(refused({{"solution", "answer"}}, same, DataFormat::prompts), "taken") << "a reward may read it";
}

TEST(Format, MessagesInPromptAndCompletionAreAConversation) {
  const Sample sample = encode(
      R"({"prompt": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}],
          "completion": [{"role": "assistant", "content": "d"}]})",
      DataFormat::completion);
  EXPECT_EQ(shown(sample), "[a]b!\n[c]d!\n");
  EXPECT_EQ(shown(sample, true), "_________d!_");
}

TEST(Format, ATokenOverTheBorderOfPromptAndAnswerIsTrained) {
  Encoder pairs = byte_encoder();
  pairs.encode = [](std::string_view text, const TakeTokens& take) {
    std::vector<TokenSpan> tokens;
    for (int64_t i = 0; i < static_cast<int64_t>(text.size()); i += 2) {
      tokens.push_back({static_cast<int32_t>(i), i, std::min<int64_t>(i + 2, static_cast<int64_t>(text.size()))});
    }
    take(tokens);
  };
  const Sample sample = encode(R"({"prompt": "abc", "completion": "de"})", DataFormat::completion, {}, pairs);
  EXPECT_THAT(sample.ids, ElementsAre(test::kBos, 0, 2, 4, test::kEos));
  EXPECT_THAT(sample.labels, ElementsAre(kIgnoreLabel, kIgnoreLabel, 2, 4, test::kEos));
}

TEST(Format, EosGoesByPositionSoTheSameTokenInThePromptStaysMasked) {
  EXPECT_EQ(shown(encode(R"({"prompt": "a$b", "completion": "c"})", DataFormat::completion), true), "____c$");
  EXPECT_EQ(shown(encode(R"({"prompt": "a", "completion": "c$"})", DataFormat::completion)), "^ac$") << "not doubled";
}

TEST(Format, BosIsNotDoubled) {
  const EncodedRecord twice = encode_record(render_document("^ab"), byte_encoder());
  EXPECT_THAT(twice.ids, ElementsAre(test::kBos, 'a', 'b', test::kEos));
  EXPECT_TRUE(twice.duplicate_bos);
  EXPECT_THAT(encode_record(render_document("ab"), byte_encoder(false)).ids, ElementsAre('a', 'b', test::kEos));
}

TEST(Format, TextIsAllTrained) { EXPECT_EQ(shown(encode(R"({"text": "ab"})", DataFormat::text), true), "_ab$"); }

TEST(Format, ChatTrainsTheAnswersWithTheirEndMarks) {
  EXPECT_EQ(shown(encode(R"({"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "u"},
                             {"role": "assistant", "content": "ab"}, {"role": "user", "content": "v"},
                             {"role": "assistant", "content": "c"}]})",
                         DataFormat::chat),
                  true),
            "______ab!____c!_");
}

TEST(Format, ChatTakesShareGptToolsAndParts) {
  EXPECT_EQ(shown(encode(R"({"system": "s", "tools": "[{\"name\": \"f\"}]", "conversations": [
                             {"from": "human", "value": "u"},
                             {"from": "function_call", "value": "{\"name\": \"f\", \"arguments\": {}}"},
                             {"from": "observation", "value": "r"}, {"from": "gpt", "value": "a"}]})",
                         DataFormat::chat)),
            "{s}[u][{\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":{}}}]!\n(r)a!\n");
  EXPECT_EQ(shown(encode(R"({"messages": [{"role": "user", "content": [{"type": "text", "text": "u"}]},
                             {"role": "assistant", "content": [{"type": "text", "value": "a"}]}]})",
                         DataFormat::chat)),
            "[u]a!\n");
}

// What is read of a conversation, which a template may show or hide.
TEST(Format, ChatTakesReasoningAndCallsUnderTheirOlderNames) {
  Conversation seen;
  Encoder encoder = byte_encoder();
  encoder.render_chat = [&](const Conversation& chat) {
    seen = chat;
    return RenderedChat{"a", {{0, 1}}};
  };
  for (const std::string name : {"reasoning_content", "reasoning", "thinking"}) {
    for (const std::string turn :
         {R"("messages": [{"role": "assistant", "content")", R"("conversations": [{"from": "gpt", "value")"}) {
      encode("{" + turn + R"(: "a", ")" + name + R"(": "r"}]})", DataFormat::chat, {}, encoder);
      EXPECT_EQ(seen.messages[0].reasoning, "r") << name;
    }
  }
  encode(R"({"functions": [{"name": "f"}], "documents": [{"text": "d"}], "messages": [
           {"role": "assistant", "content": null, "function_call": {"name": "f", "arguments": "{}"}}]})",
         DataFormat::chat, {}, encoder);
  EXPECT_EQ(seen.tools, R"([{"type":"function","function":{"name":"f"}}])");
  EXPECT_EQ(seen.documents, R"([{"text":"d"}])");
  EXPECT_EQ(seen.messages[0].tool_calls, R"([{"type":"function","function":{"name":"f","arguments":"{}"}}])");
  for (const auto& [given, read] : {std::pair{"[]", "[]"}, {"\"[]\"", "[]"}, {"null", ""}, {"\"\"", ""}}) {
    encode(R"({"messages": [{"role": "assistant", "content": "a"}], "tools": )" + std::string(given) + "}",
           DataFormat::chat, {}, encoder);
    EXPECT_EQ(seen.tools, read) << given;
  }
}

TEST(Format, IntegersBeyond64BitsKeepAllTheirDigits) {
  Conversation seen;
  Encoder encoder = byte_encoder();
  encoder.render_chat = [&](const Conversation& chat) {
    seen = chat;
    return RenderedChat{"a", {{0, 1}}};
  };
  const std::string numbers = R"({"a":100000000000000000000,"b":[-9223372036854775809,1e+20]})";
  const std::string text = R"({\"a\": 100000000000000000000, \"b\": [-9223372036854775809, 1e20]})";
  encode(R"({"chat_template_kwargs": )" + numbers + R"(, "tools": [)" + numbers + R"(], "documents": "[)" + text +
             R"(]", "messages": [{"role": "assistant", "content": null, "function_call": {"name": "f", "x": )" +
             numbers + "}}]}",
         DataFormat::chat, {}, encoder);
  const std::string call = R"({"name":"f","x":)" + numbers + "}";
  EXPECT_EQ(seen.template_arguments, numbers);
  EXPECT_EQ(seen.tools, "[" + numbers + "]");
  EXPECT_EQ(seen.documents, "[" + numbers + "]");
  EXPECT_EQ(seen.messages[0].tool_calls, R"([{"type":"function","function":)" + call + "}]");
  EXPECT_EQ(seen.messages[0].json, R"({"role":"assistant","content":null,"function_call":)" + call + "}");
}

TEST(Format, AnAnswerOfWeightZeroIsContext) {
  EXPECT_EQ(shown(encode(R"({"messages": [{"role": "user", "content": "u", "loss_weight": 0.0},
                             {"role": "assistant", "content": "a", "weight": 0}, {"role": "user", "content": "v"},
                             {"role": "assistant", "content": "b", "loss_weight": 1.0}]})",
                         DataFormat::chat),
                  true),
            "_________b!_");
}

TEST(Format, EosFollowsAnAnswerThatTheTemplateLeavesBare) {
  Encoder bare = byte_encoder();
  bare.render_chat = [](const Conversation& chat) {
    return RenderedChat{chat.messages[0].content + chat.messages[1].content, {{1, 2}}};
  };
  EXPECT_EQ(shown(encode(R"({"messages": [{"role": "user", "content": "u"}, {"role": "assistant", "content": "a"}]})",
                         DataFormat::chat, {}, bare),
                  true),
            "_a$");
}

TEST(Format, NoEosFollowsAnAnswerThatATemplateEndsInsideOfIt) {
  Encoder marked = byte_encoder();
  marked.render_chat = [](const Conversation& chat) {
    const std::string text = chat.messages[0].content + chat.messages[1].content + "\n";
    return RenderedChat{text, {{1, text.size()}}};
  };
  const auto encoded = [&](const std::string& end) {
    return shown(
        encode(R"({"messages": [{"role": "user", "content": "u"}, {"role": "assistant", "content": "a)" + end + "\"}]}",
               DataFormat::chat, {}, marked));
  };
  EXPECT_EQ(encoded("$"), "ua$\n");
  EXPECT_EQ(encoded("^"), "ua^\n") << "another special token than EOS";
  EXPECT_EQ(encoded(""), "ua\n$");
}

TEST(Format, TokensAreTakenAsTheyAre) {
  const Sample sample = encode(R"({"input_ids": [5, 257, 7], "labels": [-100, 257, 7]})", DataFormat::tokens);
  EXPECT_THAT(sample.ids, ElementsAre(5, 257, 7));
  EXPECT_THAT(sample.labels, ElementsAre(-100, 257, 7));
  EXPECT_THAT(encode(R"({"input_ids": [5, 6]})", DataFormat::tokens).labels, ElementsAre(5, 6));
}

TEST(Format, BadRecordsAreNamedWithPlaceAndReason) {
  struct Case {
    DataFormat format;
    std::string json, message;
  };
  const std::string deep = "{\"text\": " + std::string(100, '[') + std::string(100, ']') + "}";
  const std::vector<Case> cases = {
      {DataFormat::text, "{\"text\": t}", "f:1:11: is not JSON: invalid literal"},
      {DataFormat::text, "{\"text\": \"a\"", "f:1:13: is not JSON: unexpected end of input"},
      {DataFormat::text, "{\"text\": \"a\"} x", "f:1:15: is not JSON: "},
      {DataFormat::text, "{\"text\": \"\\ud800\"}", "invalid string: surrogate"},
      {DataFormat::text, "{\"text\": \"\xC3\xA4\xFF\"}", "f:1:12: is not UTF-8"},
      {DataFormat::text, "{\"text\": \"a\tb\"}", "control character"},
      {DataFormat::text, "{\"text\": 1e999}", "too large"},
      {DataFormat::text, deep, "f:1:73: more than 64 brackets"},
      {DataFormat::text, "[1]", "f:1:1: a record is a JSON object, this is array"},
      {DataFormat::text, "{\"text\": 5}", "field \"text\" is number, expected a string"},
      {DataFormat::text, "{\"tekst\": \"a\"}", "field \"text\" is missing; the record has \"tekst\""},
      {DataFormat::alpaca, R"({"instruction": "a"})", "field \"output\" is missing"},
      {DataFormat::alpaca, R"({"instruction": "a", "input": 3, "output": "b"})", "field \"input\" is number"},
      {DataFormat::alpaca, R"({"instruction": "a", "history": [["a", "b"]], "output": "b"})", "set data.template"},
      {DataFormat::chat, R"({"messages": []})", "field \"messages\" is empty"},
      {DataFormat::chat, R"({"messages": {}})", "field \"messages\" is object, expected an array"},
      {DataFormat::chat, R"({"messages": ["a"]})", "field \"messages[0]\" is string, expected an object"},
      {DataFormat::chat, R"({"messages": [{"role": "user"}]})", "messages[0] has no \"content\""},
      {DataFormat::chat, R"({"messages": [{"content": "a"}]})", "messages[0] has no \"role\""},
      {DataFormat::chat, R"({"conversations": [{"from": "cat", "value": "a"}]})", "who is not known"},
      {DataFormat::chat, R"({"conversations": [{"from": "function_call", "value": "call f"}]})", "function call"},
      {DataFormat::chat, R"({"messages": [{"role": "user", "content": [{"type": "image", "url": "x"}]}]})",
       "messages[0].content[0] has type \"image\""},
      {DataFormat::chat, R"({"messages": [{"role": "assistant", "content": "a", "weight": 0.5}]})", "must be 0 or 1"},
      {DataFormat::chat, R"({"tools": "f", "messages": [{"role": "user", "content": "a"}]})", "\"tools\" is no JSON"},
      {DataFormat::chat, "{\"tools\": \"" + std::string(100, '[') + std::string(100, ']') + "\", \"messages\": [{}]}",
       "\"tools\" is no JSON"},
      {DataFormat::tokens, R"({"input_ids": []})", "field \"input_ids\" is empty"},
      {DataFormat::tokens, R"({"input_ids": [1, 2.5]})", "\"input_ids[1]\" is number, expected a whole number"},
      {DataFormat::tokens, R"({"input_ids": [1, 258]})", "input_ids[1] is 258, outside the vocabulary of 258"},
      {DataFormat::tokens, R"({"input_ids": [-1]})", "input_ids[0] is -1, outside"},
      {DataFormat::tokens, R"({"input_ids": [18446744073709551615]})", "outside the vocabulary"},
      {DataFormat::tokens, R"({"input_ids": [1, 2], "labels": [1]})", "has 2 input_ids, but 1 labels"},
      {DataFormat::tokens, R"({"input_ids": [1, 2], "labels": [2, -100]})", "labels are not shifted"},
      {DataFormat::tokens, R"({"input_ids": [[1], 2]})", "\"input_ids[1]\" is number, expected a list"},
      {DataFormat::tokens, R"({"input_ids": [[1], [2, 258]]})", "input_ids[1][1] is 258, outside"},
      {DataFormat::tokens, R"({"input_ids": [[1], []]})", "field \"input_ids[1]\" is empty"},
      {DataFormat::tokens, R"({"input_ids": [[1], [2]], "labels": [[1]]})", "2 lists of input_ids, but 1 of labels"},
      {DataFormat::tokens, R"({"input_ids": [[1], [2]], "labels": [[1], [3]]})", "labels[1][0] is 3"},
  };
  for (const Case& c : cases) {
    EXPECT_THAT(error_of<InputError>([&] { encode(c.json, c.format); }), HasSubstr(c.message)) << c.json.substr(0, 80);
  }
}

// What is no example to follow must be asked for by the name of a format.
TEST(Format, RecordsOfAnotherObjectiveAreRefusedUntilAskedFor) {
  const std::string answers =
      R"("messages": [{"role": "user", "content": "u"}, {"role": "assistant", "content": "a"}])";
  for (const auto& [json, format] : std::vector<std::pair<std::string, DataFormat>>{
           {R"({"prompt": "p", "completion": "c", "label": false})", DataFormat::completion},
           {R"({"prompt": "p", "completion": "c", "label": true})", DataFormat::completion},
           {R"({"prompt": "p", "response": "c", "label": 0})", DataFormat::completion},
           {R"({"prompt": "p", "completion": "c", "rejected": "d"})", DataFormat::completion},
           {R"({"instruction": "i", "output": "o", "kto_tag": false})", DataFormat::alpaca},
           {R"({"question": "q", "answer": "a", "label": false})", DataFormat::completion},
           {R"({"question": "q", "choices": ["a", "b"], "answer": "B"})", DataFormat::completion},
           {R"({"text": "t", "label": false})", DataFormat::text},
           {R"({"text": "t", "label": "True"})", DataFormat::text},
           {"{" + answers + R"(, "label": false})", DataFormat::chat},
           {"{" + answers + R"(, "label": 0})", DataFormat::chat},
           {"{" + answers + R"(, "kto_tag": 1})", DataFormat::chat},
           {R"({"instruction": "i", "output": "o", "kto_tag": "0"})", DataFormat::alpaca},
           {R"({"question": "q", "answer": "a", "label": "1"})", DataFormat::completion},
           {"{" + answers + R"(, "chosen": [], "rejected": []})", DataFormat::chat}}) {
    EXPECT_THAT(error_of<InputError>([&, text = json] { detect(text); }), HasSubstr("name data.format")) << json;
    EXPECT_THAT(error_of<InputError>([&, text = json, as = format] { encode(text, as); }), HasSubstr("f:1:1: is "))
        << json;
    DataOptions asked;
    asked.format = format;
    EXPECT_FALSE(encode(json, format, asked).ids.empty()) << json;
  }
  EXPECT_THAT(error_of<InputError>([&] { detect("{" + answers + R"(, "kto_tag": true})"); }),
              HasSubstr("set objective.type to kto;"));
  EXPECT_THAT(error_of<InputError>([] { detect(R"({"text": "t", "label": true})"); }),
              HasSubstr("set objective.type to classification;"));
  EXPECT_THAT(
      error_of<InputError>([] { detect(R"({"input": {}, "preferred_output": [], "non_preferred_output": []})"); }),
      HasSubstr("set objective.type to dpo"));
  // Other fields of that name are nobody's verdict.
  EXPECT_EQ(detect(R"({"text": "t", "label": 1})"), DataFormat::text);
  for (const std::string label : {"\"physics\"", "\"\"", "null", "2", "[0]"}) {
    EXPECT_EQ(detect("{" + answers + R"(, "label": )" + label + "}"), DataFormat::chat) << label;
    EXPECT_EQ(detect(R"({"question": "q", "answer": "a", "label": )" + label + "}"), DataFormat::completion) << label;
  }
  EXPECT_EQ(detect(R"({"question": "q", "choices": ["a", "b"], "answer": "b or so"})"), DataFormat::completion);
  EXPECT_EQ(detect(R"({"question": "q", "answer": "B"})"), DataFormat::completion);
  EXPECT_EQ(detect(R"({"question": "q: A a B b", "choices": ["a", "b"], "answer": "B"})"), DataFormat::completion);
  EXPECT_EQ(detect(R"({"prompt": "p", "completion": "c", "label": "physics"})"), DataFormat::completion);
  EXPECT_EQ(detect(R"({"prompt": "p", "completion": "c", "label": 3})"), DataFormat::completion);
  EXPECT_EQ(detect(R"({"input_ids": [1], "label": true})"), DataFormat::tokens);
}

TEST(Format, PartsThatTheTemplateHidesAreRefusedOrLeftOutAndCounted) {
  Encoder encoder = byte_encoder();
  encoder.hidden_parts = [](const Conversation& chat) {
    std::vector<HiddenPart> hidden;
    if (!chat.messages[1].reasoning.empty()) hidden.push_back({HiddenPart::Kind::reasoning, 1});
    return hidden;
  };
  const std::string thoughtful = R"({"messages": [{"role": "user", "content": "u"},
    {"role": "assistant", "content": "a", "reasoning_content": "r"}]})";
  EXPECT_THAT(error_of<InputError>([&] { encode(thoughtful, DataFormat::chat, {}, encoder); }),
              StartsWith("f:1:1: has reasoning in messages[1], which the chat template does not show"));
  DataOptions options;
  options.hidden_parts = HiddenParts::drop;
  EXPECT_EQ(shown(encode(thoughtful, DataFormat::chat, options, encoder)), "[u]a!\n");
  const EncodedRecord encoded =
      encode_record(render_record("f", {thoughtful, 1, 1}, DataFormat::chat, options, encoder), encoder);
  EXPECT_TRUE(encoded.hidden_parts);
  options = {};
  options.chat_template = "some";
  const std::string pair = R"({"prompt": "u", "completion": "a", "reasoning": "r"})";
  EXPECT_THAT(error_of<InputError>([&] { encode(pair, DataFormat::completion, options, encoder); }),
              StartsWith("f:1:1: has reasoning in \"reasoning\", which the chat template does not show"));
  options.hidden_parts = HiddenParts::drop;
  EXPECT_EQ(shown(encode(pair, DataFormat::completion, options, encoder)), "[u]a!\n");
}

// Prompt and answer under the names of each format that has no messages, up to where more fields may follow.
const std::string kBare[] = {R"({"prompt": "q", "completion": "a")", R"({"prompt": "q", "response": "a")",
                             R"({"question": "q", "answer": "a")", R"({"instruction": "q", "output": "a")"};

DataFormat format_of(const std::string& bare) { return detect(bare + "}"); }

TEST(Format, WhatStandsBesidePromptAndAnswerGoesToTheTemplate) {
  Conversation seen;
  Encoder encoder = byte_encoder();
  encoder.render_chat = [&](const Conversation& chat) {
    seen = chat;
    return RenderedChat{"a", {{0, 1}}};
  };
  DataOptions options;
  options.chat_template = "some";
  for (const std::string& bare : kBare) {
    encode(bare + R"(, "system": "s", "tools": "[{\"name\": \"f\"}]", "documents": [{"text": "d"}], "thinking": "r",
                   "chat_template_kwargs": {"k": 1}})",
           format_of(bare), options, encoder);
    ASSERT_EQ(seen.messages.size(), 3u) << bare;
    EXPECT_EQ(seen.messages[0].role + seen.messages[0].content, "systems") << bare;
    EXPECT_EQ(seen.messages[2].content + seen.messages[2].reasoning, "ar") << bare;
    EXPECT_EQ(seen.tools + seen.documents, R"([{"name":"f"}][{"text":"d"}])") << bare;
    EXPECT_EQ(seen.template_arguments, R"({"k":1})") << bare;
  }
}

TEST(Format, WhatStandsBesidePromptAndAnswerIsRefusedOrLeftOutWhereNoTemplateShowsIt) {
  const std::vector<std::pair<std::string, std::string>> parts = {
      {R"("tools": [{"name": "f"}])", "a list of tools"},
      {R"("functions": "[{\"name\": \"f\"}]")", "a list of tools"},
      {R"("documents": [{"text": "d"}])", "documents"},
      {R"("reasoning_content": "r")", "reasoning in \"reasoning_content\""},
      {R"("system": "s")", "a system prompt"}};
  for (const std::string& bare : kBare) {
    const DataFormat format = format_of(bare);
    const bool alpaca = format == DataFormat::alpaca;
    DataOptions drop;
    drop.hidden_parts = HiddenParts::drop;
    const std::string alone = shown(encode(bare + "}", format));
    for (const auto& [part, name] : parts) {
      const std::string json = bare + ", " + part + "}";
      if (alpaca && name == "a system prompt") continue;  // which its prompt has a place for
      EXPECT_THAT(error_of<InputError>([&, text = json] { encode(text, format); }),
                  StartsWith("f:1:1: has " + name + ", which " +
                             (alpaca ? "Alpaca's prompt" : "a text without a chat template") + " does not show; "))
          << json;
      const RenderedRecord rendered = render_record("f", {json, 1, 1}, format, drop, byte_encoder());
      EXPECT_TRUE(rendered.hidden_parts) << json;
      EXPECT_EQ(shown(encode(json, format, drop)), alone) << json;
    }
    for (const std::string part : {R"("tools": "")", R"("tools": "[]")", R"("documents": [])", R"("functions": null)",
                                   R"("system": "")", R"("system": null)", R"("reasoning": "")", R"("reasoning": null)",
                                   R"("reasoning": 0.5)", R"("thinking": true)"}) {
      EXPECT_EQ(shown(encode(bare + ", " + part + "}", format)), alone) << part;
    }
  }
}

TEST(Format, PartsAreRefusedWhereTheTemplateTakesText) {
  Encoder encoder = byte_encoder();
  bool takes_text = true;
  encoder.render_chat = [&](const Conversation& chat) {
    if (!takes_text || chat.messages[1].json.find("[{") != std::string::npos)
      throw InputError("chat_template:1", "can only concatenate str (not \"list\") to str");
    return RenderedChat{};
  };
  const std::string json = R"({"messages": [{"role": "user", "content": "u"},
    {"role": "assistant", "content": [{"type": "text", "text": "a"}]}]})";
  const auto refusal = [&] { return error_of<InputError>([&] { encode(json, DataFormat::chat, {}, encoder); }); };
  EXPECT_EQ(refusal(),
            "f:1:1: messages[1].content is a list of parts, and the chat template takes text; write the "
            "text itself there, or choose a data.template (--template) that takes parts");
  takes_text = false;
  EXPECT_THAT(refusal(), HasSubstr("can only concatenate")) << "the parts are not why";
}

TEST(Format, AConversationWithoutTemplateIsRefused) {
  Encoder encoder = byte_encoder();
  encoder.render_chat = nullptr;
  const std::string json = R"({"messages": [{"role": "user", "content": "a"}]})";
  EXPECT_THAT(error_of<InputError>([&] { encode(json, DataFormat::chat, {}, encoder); }),
              HasSubstr("the model has no chat template; set data.template (--template), for example to chatml"));
  EXPECT_THAT(error_of<InputError>([&] { encode(json, DataFormat::chat, {}, make_ids_encoder(9, "model")); }),
              StartsWith("model: has no tokenizer"))
      << "which a template would not help";
}

}  // namespace
}  // namespace nibble
