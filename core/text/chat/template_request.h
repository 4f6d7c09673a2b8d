#pragma once
// A call of Transformers' apply_chat_template: what it takes, and what it makes of it before and after the template
// runs.

#include <ctime>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "nibble/core/text/chat/conversation.h"
#include "nibble/core/text/chat/jinja/template.h"

namespace nibble {

/// The arguments of apply_chat_template that a template sees.
struct TemplateRequest {
  jinja::Value messages;          ///< a list of dicts
  jinja::Value tools, documents;  ///< lists of dicts, or None
  bool add_generation_prompt = false;
  jinja::Value continue_final_message;  ///< None, true, false, or the field that goes on ("content")
  jinja::Dict variables;                ///< chat_template_kwargs
};

/// Reads {"messages": [...]} with "tools", "documents", "add_generation_prompt", "continue_final_message" and
/// "chat_template_kwargs" where needed. Throws InputError naming `place`.
TemplateRequest parse_template_request(std::string_view json, const std::string& place);

/// The conversation for a template that is not Jinja: roles, text, reasoning and tool calls. Throws InputError for
/// content that is no text.
Conversation conversation_of(const TemplateRequest& request);

/// The templates of a model, and how they are applied.
class ModelTemplates {
 public:
  /// `sources`: Jinja text by name ("default", "tool_use"); `special_tokens`: "bos_token" and the like by name, as far
  /// as the model has them; `now`: what strftime_now reads (the local time by default). Throws InputError, naming
  /// `place`, for a template that is wrong.
  ModelTemplates(const std::map<std::string, std::string>& sources, std::map<std::string, std::string> special_tokens,
                 const std::string& place, std::function<std::tm()> now = local_time);

  /// The text, as apply_chat_template(..., tokenize=False) gives it, and the parts marked as generated. The template
  /// "tool_use" is taken when there are tools (even none of them), else "default". Throws InputError with the message
  /// given to raise_exception, or for anything else that goes wrong.
  jinja::Rendering apply(TemplateRequest request) const;

  /// What begins a text; empty where the model has no such token.
  std::string bos() const;

  static std::tm local_time();

 private:
  struct Named {
    std::string name, source;
    jinja::Template compiled;
  };
  const Named& choose(bool with_tools) const;

  std::string place_;
  std::vector<Named> templates_;
  std::map<std::string, std::string> special_tokens_;
  std::function<std::tm()> now_;
};

}  // namespace nibble
