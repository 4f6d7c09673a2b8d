#include "nibble/recipes/gguf/ollama_modelfile.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>
#include <vector>

#include "nibble/core/base/error.h"
#include "nibble/core/io/json/json_file.h"
#include "nibble/core/models/decoder_config.h"
#include "nibble/core/text/unicode/visible_text.h"
#include "nibble/parallel/launch.h"
#include "nibble/recipes/models/tokenizers.h"

namespace nibble {

namespace {

using Turns = std::vector<std::pair<std::string, std::string>>;  // role, content

std::optional<std::string> rendered(const ChatTemplate& chat_template, const Turns& turns) {
  Conversation conversation;
  for (const auto& [role, content] : turns) conversation.messages.push_back({.role = role, .content = content});
  try {
    return chat_template.render(conversation, true).text;
  } catch (const InputError&) {  // it has no form for these roles
    return std::nullopt;
  }
}

// Contents that stand in no template: their first and last characters are of Unicode's private use.
std::string words(const std::string& name) { return "\uE0A3" + name + "\uE0A7"; }

/// Text around the contents.
struct Form {
  std::string start;                       // before the first user's content where there is no system message
  std::optional<std::string> system;       // before the system's
  std::string after_system;                // from there to the first user's
  std::string after_user;                  // the generation prompt in it
  std::string answer_start, after_answer;  // of earlier answers: from the prompt to it, from it to the next question

  std::string applied(const Turns& turns) const {
    std::string text;
    for (size_t i = 0; i < turns.size(); ++i) {
      const auto& [role, content] = turns[i];
      if (i == 0 && role == "user") text += start;
      if (role == "system") text += *system + content + after_system;
      if (role == "user") text += content + after_user;
      if (role == "assistant") text += answer_start + content + after_answer;
    }
    return text;
  }
};

// The text before, between and behind `contents`; nothing where one of them is not there.
std::optional<std::vector<std::string>> around(const std::string& text, const std::vector<std::string>& contents) {
  std::vector<std::string> pieces;
  size_t at = 0;
  for (const std::string& content : contents) {
    const size_t found = text.find(content, at);
    if (found == std::string::npos) return std::nullopt;
    pieces.push_back(text.substr(at, found - at));
    at = found + content.size();
  }
  pieces.push_back(text.substr(at));
  return pieces;
}

std::optional<Form> find_form(const ChatTemplate& chat_template) {
  const std::string s = words("s"), u = words("u"), a = words("a"), v = words("v");
  const auto plain = rendered(chat_template, {{"user", u}, {"assistant", a}, {"user", v}});
  if (!plain) return std::nullopt;
  const auto pieces = around(*plain, {u, a, v});
  if (!pieces || !(*pieces)[1].starts_with((*pieces)[3])) return std::nullopt;
  Form form;
  form.start = (*pieces)[0];
  form.after_user = (*pieces)[3];
  form.answer_start = (*pieces)[1].substr(form.after_user.size());
  form.after_answer = (*pieces)[2];
  if (const auto with_system = rendered(chat_template, {{"system", s}, {"user", u}})) {
    const auto parts = around(*with_system, {s, u});
    if (!parts) return std::nullopt;
    form.system = (*parts)[0];
    form.after_system = (*parts)[1];
  }
  // Others, longer ones among them: a template may count turns or look for words.
  std::vector<Turns> others = {{{"user", v}}, {{"user", "Why?"}, {"assistant", "So."}, {"user", "I see"}}};
  for (int turns = 1; turns <= 3; ++turns) {
    Turns longer;
    if (form.system) longer.emplace_back("system", "Be brief");
    for (int i = 0; i < turns; ++i) {
      longer.emplace_back("user", "Question " + std::to_string(i));
      if (i + 1 < turns) longer.emplace_back("assistant", "Answer " + std::to_string(i));
    }
    others.push_back(std::move(longer));
  }
  for (const Turns& turns : others) {
    if (rendered(chat_template, turns) != form.applied(turns)) return std::nullopt;
  }
  return form;
}

// A piece of text in Go's template language.
std::string literal(const std::string& text) {
  std::string result;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool braces = text.compare(i, 2, "{{") == 0;
    result += braces ? "{{ \"{{\" }}" : text.substr(i, 1);
    i += braces ? 1 : 0;
  }
  return result;
}

// An argument in a Modelfile; nothing where it cannot be written (there is no escape).
std::optional<std::string> quoted(const std::string& text) {
  const bool ends = !text.empty() && (text.front() == '"' || text.back() == '"');
  if (ends || text.find("\"\"\"") != std::string::npos) return std::nullopt;
  return "\"\"\"" + text + "\"\"\"";
}

// Before whom `bos` goes in the file's own way of encoding, it must not be written as well.
std::string bos_that_readers_add(const Tokenizer& tokenizer) {
  const std::vector<int32_t> prefix = tokenizer.prefix_ids();
  return prefix.empty() ? "" : template_tokens(tokenizer).bos;
}

std::string sampling(const std::filesystem::path& model) {
  const std::filesystem::path file = model / "generation_config.json";
  if (!std::filesystem::exists(file)) return "";
  const nlohmann::json config = parse_json(read_text_file(file), file.string());
  if (!config.is_object()) return "";
  std::string text;
  const auto add = [&](const char* key, const char* parameter) {
    const auto found = config.find(key);
    if (found != config.end() && found->is_number()) {
      text += std::string("PARAMETER ") + parameter + " " + found->dump() + "\n";
    }
  };
  if (config.value("do_sample", nlohmann::json()) == false) {
    text += "PARAMETER temperature 0\n";
  } else {
    add("temperature", "temperature");
  }
  add("top_k", "top_k");
  add("top_p", "top_p");
  add("min_p", "min_p");
  add("repetition_penalty", "repeat_penalty");
  return text;
}

}  // namespace

std::string ollama_template(const ChatTemplate& chat_template, const std::string& bos) {
  std::optional<Form> form = find_form(chat_template);
  if (!form) return "";
  const auto without_bos = [&](std::string& text) {
    if (!bos.empty() && text.starts_with(bos)) text.erase(0, bos.size());
  };
  without_bos(form->start);
  std::string text = literal(form->start);
  if (form->system) {
    without_bos(*form->system);
    text = "{{ if .System }}" + literal(*form->system) + "{{ .System }}" + literal(form->after_system) + "{{ else }}" +
           text + "{{ end }}";
  }
  return text + "{{ range .Messages }}{{ if eq .Role \"user\" }}{{ .Content }}" + literal(form->after_user) +
         "{{ else if eq .Role \"assistant\" }}" + literal(form->answer_start) + "{{ .Content }}" +
         literal(form->after_answer) + "{{ end }}{{ end }}";
}

std::string ollama_modelfile(const std::string& name, const std::filesystem::path& file,
                             const std::filesystem::path& model) {
  std::string text = std::string(kModelfileMark) + "; " +
                     visible_text(shell_line({"ollama", "create", "NAME", "-f", name})) + "\nFROM " +
                     (file.is_absolute() ? file : "." / file).string() + "\n";
  const std::unique_ptr<Tokenizer> tokenizer = find_tokenizer(model.string());
  if (!tokenizer) return text + sampling(model);
  std::vector<std::string> stops;
  const auto stop = [&](const std::string& mark) {
    if (!mark.empty() && std::find(stops.begin(), stops.end(), mark) == stops.end()) stops.push_back(mark);
  };
  if (!tokenizer->roles().chat_templates.empty()) {
    const std::unique_ptr<ChatTemplate> chat = open_chat_template("", *tokenizer);
    const std::optional<std::string> go = quoted(ollama_template(*chat, bos_that_readers_add(*tokenizer)));
    text += go && go->size() > 6
                ? "TEMPLATE " + *go + "\n"
                : "# the model's chat template has no form in Ollama's language: write TEMPLATE here\n";
    const auto source = tokenizer->roles().chat_templates.find("default");
    if (source != tokenizer->roles().chat_templates.end() && source->second.find("strftime_now") != std::string::npos) {
      text += "# the date in the template is that of the export\n";
    }
    stop(end_of_turn(*chat));
  }
  for (const int32_t id : read_decoder_config(model).eos_ids) {
    if (id < tokenizer->vocab_size() && tokenizer->is_special(id)) stop(tokenizer->token(id));
  }
  for (const std::string& mark : stops) {
    if (const auto argument = quoted(mark)) text += "PARAMETER stop " + *argument + "\n";
  }
  return text + sampling(model);
}

}  // namespace nibble
