// Where a model's own template puts the trained answers.

#include "nibble/core/text/model_chat_template.h"

#include <gtest/gtest.h>

#include "nibble/core/base/error.h"
#include "nibble/core/io/json_file.h"
#include "nibble/tests/assets.h"

namespace nibble {
namespace {

ModelChatTemplate model_template(const std::string& source, const std::string& eos = "</s>") {
  return ModelChatTemplate(
      ModelTemplates({{"default", source}}, {{"bos_token", "<s>"}, {"eos_token", eos}}, "template"));
}

std::vector<std::string> answers(const RenderedChat& chat) {
  std::vector<std::string> texts;
  for (const TextSpan& span : chat.answers) texts.push_back(chat.text.substr(span.begin, span.end - span.begin));
  return texts;
}

Conversation two_turns() {
  return {{{"system", "Be brief."}, {"user", "Hi"}, {"assistant", "Hello!"}, {"user", "Bye"}, {"assistant", "Ciao"}},
          ""};
}

using Texts = std::vector<std::string>;

TEST(ModelChatTemplate, TrainsWhatFollowsTheGenerationPromptWithTheEndOfTurn) {
  NIBBLE_ASSET_OR_SKIP(folder, "oracle-templates");
  const auto trained = [&](const char* file, const std::string& eos = "</s>") {
    return answers(model_template(read_text_file(folder / "templates" / file), eos).render(two_turns()));
  };
  EXPECT_EQ(trained("chatml.jinja"), (Texts{"Hello!<|im_end|>", "Ciao<|im_end|>"}));
  EXPECT_EQ(trained("qwen2.5-instruct.jinja"), (Texts{"Hello!<|im_end|>", "Ciao<|im_end|>"}));
  EXPECT_EQ(trained("llama-2-chat.jinja"), (Texts{" Hello! </s>", " Ciao </s>"}));
  EXPECT_EQ(trained("llama-3-instruct.jinja"), (Texts{"Hello!<|eot_id|>", "Ciao<|eot_id|>"}));
  EXPECT_EQ(trained("zephyr-7b-beta.jinja"), (Texts{"Hello!</s>", "Ciao</s>"}));
  EXPECT_EQ(trained("phi-4.jinja"), (Texts{"Hello!<|im_end|>", "Ciao<|im_end|>"}));
  EXPECT_EQ(trained("vicuna.jinja"), (Texts{"Hello!</s>", "Ciao</s>"}));  // its prompt is no prefix: a line break
  // It shows empty thoughts with the last answer only, and none in the generation prompt.
  EXPECT_EQ(trained("qwen3.jinja"), (Texts{"Hello!<|im_end|>", "<think>\n\n</think>\n\nCiao<|im_end|>"}));
}

TEST(ModelChatTemplate, FollowsGenerationMarks) {
  NIBBLE_ASSET_OR_SKIP(folder, "oracle-templates");
  const ModelChatTemplate chat = model_template(read_text_file(folder / "templates" / "qwen2.5-training.jinja"));
  Conversation conversation = two_turns();
  const Texts all = answers(chat.render(conversation));
  ASSERT_EQ(all.size(), 2U);
  EXPECT_EQ(all[0], "\nHello!<|im_end|>\n");  // as the template marks it
  conversation.messages[2].train = false;
  EXPECT_EQ(answers(chat.render(conversation)), Texts{all[1]});
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
  NIBBLE_ASSET_OR_SKIP(folder, "oracle-templates");
  const ModelChatTemplate chat = model_template(read_text_file(folder / "templates" / "qwen2.5-instruct.jinja"));
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
