#include "nibble/core/base/error.h"
#include "nibble/core/text/chat/model_chat_template.h"
#include "nibble/tests/fuzz/memory_files.h"

namespace nibble::fuzz {

namespace {

constexpr std::string_view kRequest = R"({
  "messages": [
    {"role": "system", "content": " Be <brief>.\n"},
    {"role": "user", "content": [{"type": "text", "text": "H\u00e4?"}, {"type": "image"}], "name": "u"},
    {"role": "assistant", "content": "<think>a b</think>\n\nC-1", "reasoning_content": "r",
     "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": {"x": 1.5, "y": [null, true]}}}]},
    {"role": "tool", "content": "{\"k\": 12345678901234567890}", "tool_call_id": "1"}],
  "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}]})";

// Every rendering reads the same clock.
std::tm some_time() {
  std::tm time{};
  time.tm_year = 124;
  time.tm_mday = 29;
  time.tm_mon = 1;
  time.tm_wday = 4;
  return time;
}

const std::map<std::string, std::string> kTokens = {{"bos_token", "<s>"}, {"eos_token", "</s>"}};

}  // namespace

// The template as `nibble chat` and `nibble generate` use it.
void chat_template(Bytes bytes) {
  static const TemplateRequest request = [] {
    TemplateRequest result = parse_template_request(kRequest, "request");
    result.add_generation_prompt = true;
    return result;
  }();
  try {
    ModelTemplates({{"default", std::string(as_text(bytes))}}, kTokens, "template", some_time).apply(request);
  } catch (const Error&) {
  }
}

// The template as training uses it, with the parts of the text that are trained.
void trained_template(Bytes bytes) {
  static const Conversation conversation{
      {{"user", "Hi", "", ""},
       {"assistant", "Yes", "", "why"},
       {"user", "b", "", ""},
       {"assistant", "No\n", R"([{"function":{"name":"f","arguments":{"x":1}}}])", ""}},
      R"([{"name":"f"}])"};
  try {
    const ModelChatTemplate chat(
        ModelTemplates({{"default", std::string(as_text(bytes))}}, kTokens, "template", some_time));
    const RenderedChat rendered = chat.render(conversation);
    for (const TextSpan& answer : rendered.answers) {
      if (answer.end < answer.begin || answer.end > rendered.text.size()) std::abort();
    }
  } catch (const Error&) {
  }
}

// The conversation is what is foreign.
void template_request(Bytes bytes) {
  static const ModelTemplates templates(
      {{"default",
        "{% for m in messages %}{{ m.role ~ m.content | string | trim }}{{ m | tojson }}{{ m.thinking }}{% endfor %}"
        "{{ tools | tojson(indent=2) if tools }}{{ documents }}{{ x }}"}},
      kTokens, "template", some_time);
  try {
    const TemplateRequest request = parse_template_request(as_text(bytes), "request.json");
    try {
      conversation_of(request);
    } catch (const Error&) {
    }
    templates.apply(request);
  } catch (const Error&) {
  }
}

}  // namespace nibble::fuzz
