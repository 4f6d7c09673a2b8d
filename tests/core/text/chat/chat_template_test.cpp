// The built-in chat templates: exact text and trained spans.

#include "nibble/core/text/chat/chat_template.h"

#include <gtest/gtest.h>

#include "nibble/core/base/error.h"
#include "nibble/core/text/chat/builtin_template.h"
#include "nibble/core/text/chat/model_chat_template.h"
#include "nibble/tests/core/text/chat/answers.h"

namespace nibble {
namespace {

using test::answers;

const TemplateTokens kTokens{"<s>", "</s>"};

Conversation conversation() {
  return {{{"system", "Be brief."}, {"user", " Hi "}, {"assistant", "Hello!"}, {"user", "Bye"}, {"assistant", "Ciao"}},
          ""};
}

void expect_rendering(const std::string& name, const std::string& text, const std::vector<std::string>& trained) {
  const RenderedChat chat = builtin_chat_template(name, kTokens)->render(conversation());
  EXPECT_EQ(chat.text, text) << name;
  EXPECT_EQ(answers(chat), trained) << name;
}

TEST(BuiltinTemplates, WriteTheTextOfTheirModels) {
  expect_rendering("chatml",
                   "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n Hi <|im_end|>\n"
                   "<|im_start|>assistant\nHello!<|im_end|>\n<|im_start|>user\nBye<|im_end|>\n"
                   "<|im_start|>assistant\nCiao<|im_end|>\n",
                   {"Hello!<|im_end|>", "Ciao<|im_end|>"});
  expect_rendering("llama2",
                   "<s>[INST] <<SYS>>\nBe brief.\n<</SYS>>\n\nHi [/INST] Hello! </s><s>[INST] Bye [/INST] Ciao </s>",
                   {" Hello! </s>", " Ciao </s>"});
  expect_rendering("llama-3",
                   "<s><|start_header_id|>system<|end_header_id|>\n\nBe brief.<|eot_id|>"
                   "<|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>"
                   "<|start_header_id|>assistant<|end_header_id|>\n\nHello!<|eot_id|>"
                   "<|start_header_id|>user<|end_header_id|>\n\nBye<|eot_id|>"
                   "<|start_header_id|>assistant<|end_header_id|>\n\nCiao<|eot_id|>",
                   {"Hello!<|eot_id|>", "Ciao<|eot_id|>"});
  expect_rendering("mistral", "<s>[INST] Be brief.\n\n Hi  [/INST] Hello!</s>[INST] Bye [/INST] Ciao</s>",
                   {" Hello!</s>", " Ciao</s>"});
  expect_rendering("zephyr",
                   "<|system|>\nBe brief.</s>\n<|user|>\n Hi </s>\n<|assistant|>\nHello!</s>\n"
                   "<|user|>\nBye</s>\n<|assistant|>\nCiao</s>\n",
                   {"Hello!</s>", "Ciao</s>"});
  expect_rendering("gemma",
                   "<s><start_of_turn>user\nBe brief.\n\nHi<end_of_turn>\n<start_of_turn>model\nHello!<end_of_turn>\n"
                   "<start_of_turn>user\nBye<end_of_turn>\n<start_of_turn>model\nCiao<end_of_turn>\n",
                   {"Hello!<end_of_turn>", "Ciao<end_of_turn>"});
  expect_rendering("phi-3",
                   "<|system|>\nBe brief.<|end|>\n<|user|>\n Hi <|end|>\n<|assistant|>\nHello!<|end|>\n"
                   "<|user|>\nBye<|end|>\n<|assistant|>\nCiao<|end|>\n",
                   {"Hello!<|end|>", "Ciao<|end|>"});
  expect_rendering("vicuna", "<s>Be brief. USER:  Hi  ASSISTANT: Hello!</s>USER: Bye ASSISTANT: Ciao</s>",
                   {" Hello!</s>", " Ciao</s>"});
  expect_rendering("tulu",
                   "<|system|>\nBe brief.\n<|user|>\n Hi \n<|assistant|>\nHello!</s>\n"
                   "<|user|>\nBye\n<|assistant|>\nCiao</s>\n",
                   {"Hello!</s>", "Ciao</s>"});
  expect_rendering("openchat",
                   "<s>GPT4 Correct System: Be brief.<|end_of_turn|>GPT4 Correct User:  Hi <|end_of_turn|>"
                   "GPT4 Correct Assistant: Hello!<|end_of_turn|>GPT4 Correct User: Bye<|end_of_turn|>"
                   "GPT4 Correct Assistant: Ciao<|end_of_turn|>",
                   {" Hello!<|end_of_turn|>", " Ciao<|end_of_turn|>"});
  expect_rendering("alpaca",
                   "<s>Be brief.\n\n### Instruction:\n Hi \n\n### Response:\nHello!</s>\n\n"
                   "### Instruction:\nBye\n\n### Response:\nCiao</s>\n\n",
                   {"Hello!</s>", "Ciao</s>"});
  expect_rendering("plain", "<s>Be brief.\n Hi \nHello!</s>\nBye\nCiao</s>\n", {"Hello!</s>", "Ciao</s>"});
}

// What a model is asked with is what its trained answers begin after.
TEST(BuiltinTemplates, AnswersBeginWhereTheGenerationPromptEnds) {
  for (const std::string& name : builtin_chat_template_names()) {
    const auto chat_template = builtin_chat_template(name, kTokens);
    const Conversation whole = conversation();
    const RenderedChat chat = chat_template->render(whole);
    ASSERT_EQ(chat.answers.size(), 2U) << name;
    for (const size_t k : {size_t{2}, size_t{4}}) {
      const Conversation before{{whole.messages.begin(), whole.messages.begin() + static_cast<ptrdiff_t>(k)}, ""};
      EXPECT_EQ(chat_template->render(before, true).text, chat.text.substr(0, chat.answers[k / 2 - 1].begin)) << name;
    }
  }
}

TEST(BuiltinTemplates, AnAlpacaConversationBeginsWithAlpacasPrompt) {
  const Conversation asked{{{"user", "Add 1 and 2."}}, ""};
  EXPECT_EQ(builtin_chat_template("alpaca", {})->render(asked, true).text, alpaca_prompt("Add 1 and 2."));
}

TEST(BuiltinTemplates, AlpacaNamesTheInputWhereThereIsOne) {
  EXPECT_EQ(
      alpaca_prompt("Sort.", "b a"),
      "Below is an instruction that describes a task, paired with an input that provides further context. Write a "
      "response that appropriately completes the request.\n\n### Instruction:\nSort.\n\n### Input:\nb a\n\n"
      "### Response:\n");
  EXPECT_EQ(alpaca_prompt("Sort.", "", "You sort."), "You sort.\n\n### Instruction:\nSort.\n\n### Response:\n");
}

TEST(BuiltinTemplates, AnswersThatAreContextOnlyAreNotTrained) {
  Conversation chat = conversation();
  chat.messages[2].train = false;
  EXPECT_EQ(answers(builtin_chat_template("chatml", kTokens)->render(chat)),
            std::vector<std::string>{"Ciao<|im_end|>"});
}

TEST(BuiltinTemplates, ConversationsWithoutAFormAreRefused) {
  const auto refuses = [](const char* name, const Conversation& chat) {
    EXPECT_THROW(builtin_chat_template(name, kTokens)->render(chat), InputError) << name;
  };
  refuses("chatml", {{{"narrator", "Once"}}, ""});
  refuses("zephyr", {{{"tool", "4"}}, ""});
  refuses("llama2", {{{"user", "a"}, {"user", "b"}}, ""});
  refuses("gemma", {{{"assistant", "a"}}, ""});
  refuses("mistral", {{{"system", "a"}}, ""});
  refuses("llama3", {{{"user", "a"}}, "[{}]"});
  refuses("llama3", {{{"user", "a"}}, "", "[{}]"});
  EXPECT_NO_THROW(builtin_chat_template("chatml", kTokens)->render({{{"tool", "4"}}, ""}));
}

TEST(BuiltinTemplates, AsJinjaTheyWriteAndRefuseTheSame) {
  const std::vector<std::vector<ChatMessage>> chats = {
      conversation().messages,
      {{"user", "It's\n {bos} 'quoted' \\n"}},
      {{"user", "a"}, {"assistant", " b "}},
      {{"system", " s "}, {"user", "a"}, {"assistant", "b"}, {"user", "c"}},
      {{"user", "a"}, {"user", "b"}},
      {{"assistant", "a"}},
      {{"system", "a"}},
      {{"user", "a"}, {"system", "b"}, {"user", "c"}},
      {{"user", "a"}, {"assistant", "b"}, {"tool", "4"}, {"assistant", "c"}},
      {{"narrator", "Once"}}};
  const auto output = [](const ChatTemplate& chat_template, const Conversation& chat, bool prompt) -> std::string {
    try {
      const RenderedChat rendered = chat_template.render(chat, prompt);
      std::string text = rendered.text;
      if (prompt) return text;  // a model's own template has no answers then
      for (const TextSpan& span : rendered.answers) {
        text += "|" + std::to_string(span.begin) + "-" + std::to_string(span.end);
      }
      return text;
    } catch (const InputError&) {
      return "refused";
    }
  };
  for (const std::string& name : builtin_chat_template_names()) {
    const ModelChatTemplate source(ModelTemplates({{"default", builtin_chat_template_source(name)}},
                                                  {{"bos_token", kTokens.bos}, {"eos_token", kTokens.eos}}, name));
    const auto builtin = builtin_chat_template(name, kTokens);
    for (const auto& messages : chats) {
      for (const bool prompt : {false, true}) {
        const Conversation chat{messages, ""};
        EXPECT_EQ(output(source, chat, prompt), output(*builtin, chat, prompt)) << name << " " << messages.back().role;
      }
    }
    const Conversation with_tools{{{"user", "a"}}, R"([{"type": "function", "function": {"name": "f"}}])"};
    EXPECT_EQ(output(source, with_tools, false), output(*builtin, with_tools, false)) << name;
  }
}

TEST(BuiltinTemplates, TheEndOfATurnIsFound) {
  EXPECT_EQ(end_of_turn(*builtin_chat_template("chatml", kTokens)), "<|im_end|>");
  EXPECT_EQ(end_of_turn(*builtin_chat_template("llama2", kTokens)), "</s>");
  EXPECT_EQ(end_of_turn(*builtin_chat_template("gemma", kTokens)), "<end_of_turn>");
}

TEST(BuiltinTemplates, AnUnknownNameIsAnsweredWithTheNearest) {
  try {
    builtin_chat_template("chatlm", kTokens);
    FAIL();
  } catch (const UsageError& error) {
    EXPECT_NE(std::string(error.what()).find("chatml"), std::string::npos);
  }
}

}  // namespace
}  // namespace nibble
