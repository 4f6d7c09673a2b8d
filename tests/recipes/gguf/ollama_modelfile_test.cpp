#include "nibble/recipes/gguf/ollama_modelfile.h"

#include <gmock/gmock.h>

#include "nibble/core/text/chat/model_chat_template.h"
#include "nibble/tests/temporary_directory.h"

namespace nibble {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

std::string of_builtin(const std::string& name, const std::string& bos = "") {
  return ollama_template(*builtin_chat_template(name, {.bos = "<s>", .eos = "</s>"}), bos);
}

std::string of_jinja(const std::string& text) {
  return ollama_template(ModelChatTemplate(ModelTemplates({{"default", text}}, {}, "chat_template")), "");
}

TEST(OllamaTemplate, WritesChatmlAsGo) {
  EXPECT_EQ(of_builtin("chatml"),
            "{{ if .System }}<|im_start|>system\n{{ .System }}<|im_end|>\n<|im_start|>user\n{{ else }}"
            "<|im_start|>user\n{{ end }}{{ range .Messages }}{{ if eq .Role \"user\" }}{{ .Content }}<|im_end|>\n"
            "<|im_start|>assistant\n{{ else if eq .Role \"assistant\" }}{{ .Content }}<|im_end|>\n<|im_start|>user\n"
            "{{ end }}{{ end }}");
}

TEST(OllamaTemplate, EveryBuiltinTemplateHasAForm) {
  for (const std::string& name : builtin_chat_template_names()) EXPECT_NE(of_builtin(name), "") << name;
}

TEST(OllamaTemplate, LeavesOutWhatTheReaderPutsInFront) {
  EXPECT_THAT(of_builtin("llama3"), HasSubstr("{{ if .System }}<s><|start_header_id|>system"));
  EXPECT_THAT(of_builtin("llama3", "<s>"), HasSubstr("{{ if .System }}<|start_header_id|>system"));
  EXPECT_THAT(of_builtin("llama2", "<s>"), HasSubstr("{{ else }}[INST] {{ end }}"));
  EXPECT_THAT(of_builtin("llama2", "<s>"), HasSubstr(" </s><s>[INST] ")) << "further questions keep theirs";
}

TEST(OllamaTemplate, ASystemMessageThatIsAlwaysThereIsWrittenWhereNoneIsGiven) {
  const std::string result = of_jinja(
      "{% if messages[0].role != 'system' %}<sys>Be kind.</sys>{% endif %}{% for m in messages %}"
      "<{{ m.role }}>{{ m.content }}</{{ m.role }}>{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}");
  EXPECT_THAT(result, HasSubstr("{{ else }}<sys>Be kind.</sys><user>{{ end }}"));
}

TEST(OllamaTemplate, IsNothingWhereTheTemplateChangesContentsOrCountsTurns) {
  EXPECT_EQ(of_jinja("{% for m in messages %}{{ m.content | upper }}{% endfor %}"), "");
  EXPECT_EQ(of_jinja("{% for m in messages %}[{{ loop.index }}]{{ m.content }}{% endfor %}"), "");
  EXPECT_EQ(of_jinja("{{ raise_exception('no') }}"), "");
}

TEST(OllamaTemplate, BracesOfTheTemplateAreWrittenAsText) {
  EXPECT_THAT(of_jinja("{% for m in messages %}{{ '{{' }}{{ m.content }}{% endfor %}"), HasSubstr("{{ \"{{\" }}"));
}

TEST(OllamaModelfile, HasTheTemplateTheEndsAndTheSamplingOfTheModel) {
  const test::TemporaryDirectory model;
  test::write_bytes(model / "config.json",
                    R"({"model_type": "llama", "vocab_size": 5, "hidden_size": 8, "intermediate_size": 8,
                        "num_hidden_layers": 1, "num_attention_heads": 1, "eos_token_id": [1, 3]})");
  test::write_bytes(model / "generation_config.json",
                    R"({"do_sample": true, "temperature": 0.6, "top_p": 0.9, "top_k": 40, "max_length": 9})");
  test::write_bytes(model / "tokenizer_config.json",
                    R"({"chat_template": "{% for m in messages %}<|{{ m.role }}|>)"
                    R"({{ m.content }}<|end|>{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}",)"
                    R"("eos_token": "</s>"})");
  test::write_bytes(model / "tokenizer.json",
                    R"({"version": "1.0", "added_tokens": [)"
                    R"({"id": 0, "content": "<s>", "special": true}, {"id": 1, "content": "</s>", "special": true},)"
                    R"({"id": 3, "content": "<|end|>", "special": true}], "model": {"type": "BPE", "vocab": )"
                    R"({"<s>": 0, "</s>": 1, "a": 2, "<|end|>": 3, "b": 4}, "merges": []}})");
  const std::string result = ollama_modelfile("Model's file", "m.gguf", model.path());
  EXPECT_THAT(result, HasSubstr("; ollama create NAME -f 'Model'\\''s file'\nFROM ./m.gguf\n"));
  EXPECT_THAT(result, HasSubstr("\nTEMPLATE \"\"\"{{ if .System }}<|system|>{{ .System }}<|end|><|user|>"));
  EXPECT_THAT(result, HasSubstr("\nPARAMETER stop \"\"\"<|end|>\"\"\"\nPARAMETER stop \"\"\"</s>\"\"\"\n"));
  EXPECT_THAT(result, HasSubstr("\nPARAMETER temperature 0.6\nPARAMETER top_k 40\nPARAMETER top_p 0.9\n"));
  EXPECT_THAT(result, Not(HasSubstr("max_length")));
}

}  // namespace
}  // namespace nibble
