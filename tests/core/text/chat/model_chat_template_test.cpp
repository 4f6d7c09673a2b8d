// Where a model's own template puts the trained answers.

#include "nibble/core/text/chat/model_chat_template.h"

#include <gtest/gtest.h>

#include <ctime>
#include <filesystem>

#include "nibble/core/base/error.h"
#include "nibble/core/io/json/json_file.h"
#include "nibble/tests/assets.h"
#include "nibble/tests/core/text/chat/answers.h"

namespace nibble {
namespace {

using test::answers;

ModelChatTemplate model_template(const std::string& source, const std::string& eos = "</s>") {
  return ModelChatTemplate(
      ModelTemplates({{"default", source}}, {{"bos_token", "<s>"}, {"eos_token", eos}}, "template"));
}

Conversation two_turns() {
  return {{{"system", "Be brief."}, {"user", "Hi"}, {"assistant", "Hello!"}, {"user", "Bye"}, {"assistant", "Ciao"}},
          ""};
}

using Texts = std::vector<std::string>;

TEST(ModelChatTemplate, TrainsWhatFollowsTheGenerationPromptWithTheEndOfTurn) {
  const std::filesystem::path folder = test::data_path("templates");
  const auto trained = [&](const char* file) {
    return answers(model_template(read_text_file(folder / file)).render(two_turns()));
  };
  EXPECT_EQ(trained("chatml.jinja"), (Texts{"Hello!<|im_end|>", "Ciao<|im_end|>"}));
  EXPECT_EQ(trained("tools.jinja"), (Texts{"Hello!<|im_end|>", "Ciao<|im_end|>"}));
  EXPECT_EQ(trained("inst.jinja"), (Texts{" Hello! </s>", " Ciao </s>"}));
  EXPECT_EQ(trained("headers.jinja"), (Texts{"Hello!<|eot_id|>", "Ciao<|eot_id|>"}));
  EXPECT_EQ(trained("angles.jinja"), (Texts{"Hello!</s>", "Ciao</s>"}));
  EXPECT_EQ(trained("roles.jinja"), (Texts{"Hello!</s>", "Ciao</s>"}));  // its prompt is no prefix: a line break
  // It shows empty thoughts with the last answer only, and none in the generation prompt.
  EXPECT_EQ(trained("thoughts.jinja"), (Texts{"Hello!<|im_end|>", "<think>\n\n</think>\n\nCiao<|im_end|>"}));
}

// Templates that end a conversation otherwise than a turn.
TEST(ModelChatTemplate, TrainsTheMarkOfATurnThatIsNotTheLast) {
  const auto turns = [](const std::string& after_turn, const std::string& after_all) {
    return "{{ bos_token }}{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}" + after_turn + "{% endfor %}" +
           "{% if add_generation_prompt %}<|assistant|>\n{% else %}" + after_all + "{% endif %}";
  };
  Conversation conversation{{{"user", "Hi"}, {"assistant", "Hello!"}, {"user", "Bye"}, {"assistant", "Ciao"}}, ""};
  const auto trained = [&](const std::string& after_turn, const std::string& after_all) {
    return answers(model_template(turns(after_turn, after_all)).render(conversation));
  };
  EXPECT_EQ(trained("<|end|>\n", "{{ eos_token }}"), (Texts{"Hello!<|end|>", "Ciao<|end|>\n</s>"}));
  EXPECT_EQ(trained("{% if not loop.last or add_generation_prompt %}<|end|>\n{% endif %}", ""),
            (Texts{"Hello!<|end|>", "Ciao"}));
  EXPECT_EQ(trained("{% if not loop.last %}<|end|>\n{% else %}<|return|>{% endif %}", ""),
            (Texts{"Hello!", "Ciao<|return|>"}))
      << "generation does not stop at the other mark";
  EXPECT_EQ(trained("\n", ""), (Texts{"Hello!", "Ciao"})) << "a line break is no mark";
  conversation.messages.pop_back();
  EXPECT_EQ(trained("<|end|>\n", "{{ eos_token }}"), Texts{"Hello!<|end|>"});
  conversation.messages[2] = {"tool", "42"};
  conversation.messages.push_back({"user", "Bye"});
  const std::string bare =
      "{% for m in messages %}{% if m.role != 'tool' %}<|{{ m.role }}|>\n{% endif %}{{ m.content }}"
      "{% endfor %}{% if add_generation_prompt %}<|assistant|>\n{% endif %}";
  EXPECT_EQ(answers(model_template(bare).render(conversation)), Texts{"Hello!"}) << "no mark, but what a tool says";
}

// Many turns, every other one with a tool's help.
Conversation of_turns(size_t turns, bool tools) {
  Conversation conversation{{{"system", "Be brief."}}, ""};
  for (size_t k = 0; k < turns; ++k) {
    const std::string n = std::to_string(k);
    conversation.messages.push_back({"user", "question " + n});
    if (tools && k % 2 == 1) {
      const std::string calls = R"([{"type": "function", "function": {"name": "f", "arguments": {"n": )" + n + "}}}]";
      conversation.messages.push_back({"assistant", "", calls});
      conversation.messages.push_back({"tool", "result " + n});
    }
    conversation.messages.push_back({"assistant", "answer " + n, "", "", k % 3 != 0});
  }
  return conversation;
}

// From 64 messages on they are looked for in excerpts.
TEST(ModelChatTemplate, FindsTheAnswersOfLongConversationsWhereThoseOfShortOnesAre) {
  size_t compared = 0;
  for (const auto& file : std::filesystem::directory_iterator(test::data_path("templates"))) {
    if (file.path().extension() != ".jinja") continue;
    const ModelChatTemplate chat = model_template(read_text_file(file.path()));
    for (const bool tools : {false, true}) {
      RenderedChat longer, shorter;
      try {
        longer = chat.render(of_turns(60, tools));
        shorter = chat.render(of_turns(tools ? 20 : 31, tools));
      } catch (const InputError&) {
        continue;  // has no system messages or tools
      }
      const ptrdiff_t count = std::ssize(shorter.answers) - 2;  // the last may end otherwise
      ASSERT_GT(count, 10) << file;
      EXPECT_TRUE(std::equal(shorter.answers.begin(), shorter.answers.begin() + count, longer.answers.begin())) << file;
      const Texts all = answers(longer);
      EXPECT_EQ(all.size(), tools ? 30 + 40 : 40) << file;
      EXPECT_NE(all.back().find("answer 59"), std::string::npos) << file;
      ++compared;
    }
  }
  EXPECT_GT(compared, 8U);
}

TEST(ModelChatTemplate, TimeToFindAnswersGrowsAsTheConversation) {
  const ModelChatTemplate chat = model_template(read_text_file(test::data_path("templates/tools.jinja")));
  const auto ticks = [&](size_t turns) {
    const Conversation conversation = of_turns(turns, true);
    const std::clock_t start = std::clock();
    chat.render(conversation);
    chat.hidden_parts(conversation);
    return static_cast<double>(std::clock() - start);
  };
  const double few = ticks(100), many = ticks(400);
  EXPECT_LT(many, 8 * few) << "4 times the work, not 16 times";
}

TEST(ModelChatTemplate, AnEmptyListOfToolsIsAsTransformersGivesIt) {
  const ModelChatTemplate chat = model_template("{% if tools is not none %}tools{% endif %}{{ messages[0].content }}");
  Conversation conversation{{{"user", "Hi"}}, "[]"};
  EXPECT_EQ(chat.render(conversation, true).text, "toolsHi");
  EXPECT_TRUE(chat.hidden_parts(conversation).empty());
  conversation.tools.clear();
  EXPECT_EQ(chat.render(conversation, true).text, "Hi");
}

TEST(ModelChatTemplate, FollowsGenerationMarks) {
  const std::filesystem::path folder = test::data_path("templates");
  const ModelChatTemplate chat = model_template(read_text_file(folder / "marked.jinja"));
  Conversation conversation = two_turns();
  const Texts all = answers(chat.render(conversation));
  ASSERT_EQ(all.size(), 2U);
  EXPECT_EQ(all[0], "\nHello!<|im_end|>\n");  // as the template marks it
  conversation.messages[2].train = false;
  EXPECT_EQ(answers(chat.render(conversation)), Texts{all[1]});
}

TEST(ModelChatTemplate, SeesTheVariablesThatARecordGivesIt) {
  const ModelChatTemplate chat = model_template(
      "{% for m in messages %}{{ m.content }}{% endfor %}{% if thinking is defined and thinking %}<think>{% endif %}");
  Conversation conversation{{{"user", "Hi"}}, ""};
  EXPECT_EQ(chat.render(conversation, true).text, "Hi");
  conversation.template_arguments = R"({"thinking": true})";
  EXPECT_EQ(chat.render(conversation, true).text, "Hi<think>");
}

// What a template does not read it leaves out without a word; the list of it in words.
Texts hidden(const std::string& source, const Conversation& conversation) {
  Texts names;
  for (const HiddenPart& part : model_template(source).hidden_parts(conversation)) {
    constexpr const char* kNames[] = {"tools", "documents", "calls ", "reasoning ", "message "};
    const std::string name = kNames[static_cast<int>(part.kind)];
    names.push_back(name + (name.back() == ' ' ? std::to_string(part.message) : ""));
  }
  return names;
}

Conversation with_parts() {
  const std::string calls = R"([{"type": "function", "function": {"name": "f", "arguments": {"x": 1}}}])";
  return {{{"user", "Hi"},
           {"assistant", "", calls, "why"},
           {"tool", "17"},
           {"assistant", "It is 17", "", "because"},
           {"user", "Bye"},
           {"assistant", "Ciao", "", "polite"}},
          R"([{"type": "function", "function": {"name": "f"}}])"};
}

TEST(ModelChatTemplate, KnowsWhatATemplateHides) {
  const std::string plain = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}";
  EXPECT_EQ(hidden(plain, with_parts()), (Texts{"tools", "calls 1", "reasoning 1", "reasoning 3", "reasoning 5"}));
  EXPECT_EQ(hidden(plain, two_turns()), Texts{});
  const std::string no_tools = "{% for m in messages %}{% if m.role != 'tool' %}{{ m.content }}{% endif %}{% endfor %}";
  EXPECT_EQ(hidden(no_tools, {{{"user", "a"}, {"tool", "b"}, {"assistant", "c"}}, ""}), Texts{"message 1"});
  const std::string known =
      "{% for m in messages %}{% if m.role in ['user', 'assistant'] or loop.first and m.role == 'system' %}"
      "{{ m.role }}: {{ m.content | trim }}{% endif %}{% endfor %}";
  const auto of_roles = [](const Texts& roles) {
    Conversation chat;
    for (const std::string& role : roles) chat.messages.push_back({role, " a "});
    return chat;
  };
  EXPECT_EQ(hidden(known, of_roles({"system", "user", "assistant"})), Texts{});
  EXPECT_EQ(hidden(known, of_roles({"human", "asistant", "user", "system", "developer", "assistant"})),
            (Texts{"message 0", "message 1", "message 3", "message 4"}));
  const std::string all =
      "{{ tools }}{% for m in messages %}{{ m.role }}{{ m.reasoning_content }}{{ m.content }}{{ m.tool_calls }}"
      "{% endfor %}";
  EXPECT_EQ(hidden(all, with_parts()), Texts{});
  // Thoughts that are taken out of earlier answers were shown in their time.
  const std::string last =
      "{{ tools }}{% for m in messages %}{{ m.content }}{{ m.tool_calls }}{% if loop.last %}"
      "{{ m.reasoning_content }}{% endif %}{% endfor %}";
  EXPECT_EQ(hidden(last, with_parts()), Texts{});
  // Under the names that other data give it.
  Conversation thinking = two_turns();
  thinking.messages[2].json = R"({"role": "assistant", "content": "Hello!", "thinking": "why"})";
  EXPECT_EQ(hidden(plain, thinking), Texts{"reasoning 2"});
  EXPECT_EQ(hidden(last, thinking), Texts{});
}

TEST(ModelChatTemplate, KnowsWhatATemplateHidesOfDocumentsAndOlderCalls) {
  Conversation older = two_turns();
  older.documents = R"([{"title": "t", "text": "d"}])";
  older.messages[2].json = R"({"role": "assistant", "content": "Hello!", "function_call": {"name": "f"}})";
  const std::string plain = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}";
  EXPECT_EQ(hidden(plain, older), (Texts{"documents", "calls 2"}));
  EXPECT_EQ(hidden("{{ documents }}{% for m in messages %}{{ m.content }}{{ m.function_call }}{% endfor %}", older),
            Texts{});
}

TEST(ModelChatTemplate, NoTemplateThatShowsAPartIsSaidToHideIt) {
  const std::filesystem::path folder = test::data_path("templates");
  const Conversation all = with_parts();
  const Conversation one{{all.messages[0], all.messages[1], all.messages[2], {"assistant", "It is 17"}}, all.tools};
  const Conversation thoughts{{{"user", "Hi"}, {"assistant", "It is 17", "", "because I say so"}}, ""};
  const std::string qwen = read_text_file(folder / "thoughts.jinja");
  EXPECT_EQ(hidden(qwen, all), Texts{});
  EXPECT_EQ(hidden(qwen, thoughts), Texts{});
  const std::string older = read_text_file(folder / "tools.jinja");
  EXPECT_EQ(hidden(older, one), Texts{"reasoning 1"});
  EXPECT_EQ(hidden(older, thoughts), Texts{"reasoning 1"});
  EXPECT_EQ(hidden(read_text_file(folder / "chatml.jinja"), one), (Texts{"tools", "calls 1", "reasoning 1"}));
}

TEST(ModelChatTemplate, FindsAnswersThatLaterTurnsChange) {
  // Thoughts go from every answer but the last; what stands before an answer depends on how many follow.
  const ModelChatTemplate chat = model_template(
      "{{ messages|length }} messages\n{% for m in messages %}<{{ m.role }}>"
      "{{ m.content if loop.last else m.content.split('</think>')[-1] }}</{{ m.role }}>\n{% endfor %}"
      "{% if add_generation_prompt %}<assistant>{% endif %}");
  const Conversation conversation{
      {{"user", "Hi"}, {"assistant", "<think>a</think>Hello!"}, {"user", "Bye"}, {"assistant", "<think>b</think>Ciao"}},
      ""};
  EXPECT_EQ(answers(chat.render(conversation)), (Texts{"Hello!</assistant>", "<think>b</think>Ciao</assistant>"}));
}

TEST(ModelChatTemplate, TrainsToolCalls) {
  const std::filesystem::path folder = test::data_path("templates");
  const ModelChatTemplate chat = model_template(read_text_file(folder / "tools.jinja"));
  Conversation conversation{{{"user", "Weather?"},
                             {"assistant", "", R"([{"function": {"name": "weather", "arguments": {"city": "Rom"}}}])"},
                             {"tool", "sunny"},
                             {"assistant", "Sunny."}},
                            R"([{"type": "function", "function": {"name": "weather"}}])"};
  EXPECT_EQ(answers(chat.render(conversation)),
            (Texts{"<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Rom\"}}\n</tool_call><|im_end|>",
                   "Sunny.<|im_end|>"}));
}

TEST(ModelChatTemplate, RefusesToTrainWhatTheTemplateDoesNotShow) {
  const ModelChatTemplate chat = model_template("{{ messages[0].content }}");
  EXPECT_THROW(chat.render(two_turns()), InputError);
  EXPECT_EQ(chat.render(two_turns(), true).text, "Be brief.");
}

TEST(ModelChatTemplate, TheEndOfATurnIsWhatStandsBehindAnAnswer) {
  EXPECT_EQ(end_of_turn(model_template("{% for m in messages %}[{{ m.role }}]{{ m.content }}<done>\n{% endfor %}")),
            "<done>");
  EXPECT_EQ(end_of_turn(model_template("{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}"
                                       "{{ eos_token }}{% endfor %}")),
            "</s>");
  EXPECT_EQ(end_of_turn(model_template("{% for m in messages %}{{ m.content }}\n{% endfor %}")), "");
  EXPECT_EQ(end_of_turn(model_template("{{ raise_exception('no') }}")), "");
}

TEST(ModelChatTemplate, ShowsTheTemplateTheWholeMessage) {
  const ModelChatTemplate chat = model_template("{{ messages[0].name }}: {{ messages[0].content }}");
  Conversation conversation{{{"user", "Hi"}}, ""};
  conversation.messages[0].json = R"({"role": "user", "name": "Ada", "content": "Hi"})";
  EXPECT_EQ(chat.render(conversation).text, "Ada: Hi");
}

}  // namespace
}  // namespace nibble
