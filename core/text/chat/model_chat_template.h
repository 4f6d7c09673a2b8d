#pragma once
// A model's own chat template behind the ChatTemplate seam.

#include <optional>
#include <string>
#include <vector>

#include "nibble/core/text/chat/chat_template.h"
#include "nibble/core/text/chat/template_request.h"

namespace nibble {

/// Renders as Transformers does. The trained answers (only without add_generation_prompt) are what {% generation %}
/// marks, where the template has it. Else they are found from outside, so that templates that show earlier answers
/// differently later on are right too: an answer ends where the text goes on as it does with other words in that
/// message, end-of-turn mark included, and begins behind its generation prompt.
class ModelChatTemplate final : public ChatTemplate {
 public:
  explicit ModelChatTemplate(ModelTemplates templates) : templates_(std::move(templates)) {}

  /// Throws InputError for what the template refuses, and where it does not show an answer that is trained.
  RenderedChat render(const Conversation& conversation, bool add_generation_prompt = false) const override;
  std::vector<HiddenPart> hidden_parts(const Conversation& conversation) const override;

 private:
  /// The text, nullopt where the template refuses.
  std::optional<std::string> try_render(const TemplateRequest& request) const;
  /// A conversation, or its first and last messages with some from between them: messages [begin, end) of `request` are
  /// looked at, and are `skipped` messages and `shift` bytes further on in the whole.
  struct Excerpt {
    TemplateRequest request;
    std::string text;
    size_t begin = 0, end = 0, skipped = 0, shift = 0;
  };
  /// Excerpts of a long conversation that look at each message once: the work on them grows with their number. Their
  /// texts give `text`; where none do so, and of a short conversation, the only excerpt is the whole.
  std::vector<Excerpt> excerpts(const Conversation& conversation, const TemplateRequest& request,
                                const std::string& text) const;
  /// Those between messages `cuts`; none where their texts do not give `text`.
  std::vector<Excerpt> cut_at(const std::vector<size_t>& cuts, const TemplateRequest& request,
                              const std::string& text) const;
  /// Whether the text of `part` is another with `changed` in the place of message k, or was when k was the last.
  bool shows(const Excerpt& part, size_t k, const jinja::Value& changed) const;
  TextSpan find_answer(const Excerpt& part, size_t k) const;

  ModelTemplates templates_;
};

}  // namespace nibble
