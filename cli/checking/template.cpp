// nibble template: conversations as the text that a chat template makes of them.

#include <cstdio>
#include <fstream>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>

#include "nibble/cli/command_line/model_flags.h"
#include "nibble/cli/commands.h"
#include "nibble/cli/printing/say.h"
#include "nibble/core/base/error.h"
#include "nibble/core/io/hub/checkpoint_dir.h"
#include "nibble/core/io/json/json_file.h"
#include "nibble/core/text/chat/chat_template.h"
#include "nibble/core/text/chat/jinja/values/unicode_text.h"
#include "nibble/core/text/chat/template_files.h"
#include "nibble/core/text/chat/template_request.h"

namespace nibble::cli {

namespace {

using nlohmann::json;

struct TemplateFlags {
  std::string model, builtin, file, messages, tools, jsonl, bos, eos, now;
  bool add_generation_prompt = false, spans = false;
  bool has_bos = false, has_eos = false;
};

std::function<std::tm()> clock_of(const std::string& now) {
  if (now.empty()) return ModelTemplates::local_time;
  std::tm parts{};
  const char* rest = strptime(now.c_str(), "%Y-%m-%dT%H:%M:%S", &parts);
  if (rest == nullptr || *rest != '\0')
    throw UsageError("'" + now + "' is no time", "write it as 2026-03-05T07:08:09", "--now");
  parts.tm_isdst = -1;
  return [parts] { return parts; };
}

// What turns a request into text.
using Apply = std::function<jinja::Rendering(TemplateRequest)>;

Apply apply_builtin(const TemplateFlags& flags) {
  const std::shared_ptr<const ChatTemplate> chat = builtin_chat_template(flags.builtin, {flags.bos, flags.eos});
  return [chat](const TemplateRequest& request) {
    RenderedChat rendered = chat->render(conversation_of(request), request.add_generation_prompt);
    jinja::Rendering result{std::move(rendered.text), {}};
    for (const TextSpan& answer : rendered.answers) {
      const auto points = [&](size_t end) {
        return jinja::count_code_points(std::string_view(result.text).substr(0, end));
      };
      result.generated.push_back({answer, {points(answer.begin), points(answer.end)}});
    }
    return result;
  };
}

Apply apply_jinja(const TemplateFlags& flags) {
  TemplateFiles files;
  if (flags.model.empty()) {
    files.templates["default"] = read_text_file(flags.file);
  } else {
    link_roots(flags.model);  // throws unless it is a directory
    files = read_template_files(flags.model);
    if (files.templates.empty())
      throw InputError(flags.model, "has no chat template", "choose a built-in one with --builtin, or --template FILE");
  }
  if (flags.has_bos) files.special_tokens["bos_token"] = flags.bos;
  if (flags.has_eos) files.special_tokens["eos_token"] = flags.eos;
  const auto templates = std::make_shared<const ModelTemplates>(
      files.templates, files.special_tokens, flags.model.empty() ? flags.file : flags.model, clock_of(flags.now));
  return [templates](TemplateRequest request) { return templates->apply(std::move(request)); };
}

json answer_of(const jinja::Rendering& rendering, bool spans) {
  if (!spans) return rendering.text;
  json all = json::array();
  for (const jinja::GeneratedSpan& span : rendering.generated) all.push_back({span.points.begin, span.points.end});
  return {{"text", rendering.text}, {"spans", all}};
}

void run_lines(const TemplateFlags& flags, const Apply& apply) {
  std::ifstream file(flags.jsonl, std::ios::binary);
  if (!file) throw IoError(flags.jsonl, "cannot be read", "check the path and its permissions");
  std::string line;
  for (size_t number = 1; std::getline(file, line); ++number) {
    if (!line.empty() && line.back() == '\r') line.pop_back();
    if (line.empty()) continue;
    json answer;
    try {
      TemplateRequest request = parse_template_request(line, flags.jsonl + ":" + std::to_string(number));
      request.add_generation_prompt |= flags.add_generation_prompt;
      answer = answer_of(apply(std::move(request)), flags.spans);
    } catch (const InputError& error) {
      answer = {{"error", error.what()}};
    }
    std::cout << json_line(answer) << '\n';
  }
}

void run_one(const TemplateFlags& flags, const Apply& apply) {
  std::string text = "{\"messages\": " + read_text_file(flags.messages);
  if (!flags.tools.empty()) text += ", \"tools\": " + read_text_file(flags.tools);
  TemplateRequest request = parse_template_request(text + "}", flags.messages);
  request.add_generation_prompt = flags.add_generation_prompt;
  const json answer = answer_of(apply(std::move(request)), flags.spans);
  std::cout << for_stream(stdout, flags.spans ? json_line(answer) + "\n" : answer.get<std::string>());
}

void run(const TemplateFlags& flags) {
  if (flags.jsonl.empty() == flags.messages.empty()) throw UsageError("give --messages or --jsonl");
  if (!flags.tools.empty() && !flags.jsonl.empty())
    throw UsageError("--tools goes with --messages", "put \"tools\" into the lines of --jsonl");
  const Apply apply = flags.builtin.empty() ? apply_jinja(flags) : apply_builtin(flags);
  if (flags.jsonl.empty()) {
    run_one(flags, apply);
  } else {
    run_lines(flags, apply);
  }
}

}  // namespace

void add_template_command(Command& nibble) {
  auto flags = std::make_shared<TemplateFlags>();
  Command command = nibble.subcommand("template", "Show conversations as the text that a chat template makes of them");
  command.group(kCheckingTools);
  const Argument model = model_option(command, flags->model, "model directory: its own template");
  const Argument builtin =
      command.option("--builtin", flags->builtin, "built-in template: chatml, llama3, alpaca, ...");
  const Argument file = command.option("--template", flags->file, "template file (Jinja)");
  command.exactly_one_of({model, builtin, file});
  command.option("--messages", flags->messages, "JSON file: a list of {role, content}");
  command.option("--tools", flags->tools, "JSON file: a list of tool descriptions");
  command.option("--jsonl", flags->jsonl,
                 "one {\"messages\": [...]} a line in, one JSON string or {\"error\"} a line out");
  command.flag("--add-generation-prompt", flags->add_generation_prompt, "end where the assistant's answer begins");
  const Argument bos = command.option("--bos-token", flags->bos, "bos_token in the template");
  const Argument eos = command.option("--eos-token", flags->eos, "eos_token in the template");
  command.option("--now", flags->now, "what strftime_now reads: 2026-03-05T07:08:09 (the local time)");
  command.flag("--spans", flags->spans, "print {\"text\", \"spans\"}: the code points that {% generation %} marks");
  command.footer("Example: nibble template --model DIR --messages chat.json --add-generation-prompt");
  command.run([flags, bos, eos] {
    flags->has_bos = bos.given();
    flags->has_eos = eos.given();
    run(*flags);
  });
}

}  // namespace nibble::cli
