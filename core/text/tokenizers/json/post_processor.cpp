#include "nibble/core/text/tokenizers/json/post_processor.h"

namespace nibble {

namespace {

int32_t read_id(const JsonFields& from) {
  const int64_t id = from.integer();
  if (id < 0 || id > INT32_MAX) from.fail("is no token id");
  return static_cast<int32_t>(id);
}

}  // namespace

PostProcessor::PostProcessor(const JsonFields& description) {
  if (!description.value().is_null()) add(description);
}

void PostProcessor::add(const JsonFields& from) {
  const std::string type = from.string("type");
  if (type == "Sequence") {
    const JsonFields list = from.at("processors");
    for (size_t k = 0; k < list.size(); ++k) add(list.item(k));
  } else if (type == "BertProcessing" || type == "RobertaProcessing") {
    steps_.push_back(
        {{false, {read_id(from.at("cls").item(1))}}, {true, {}}, {false, {read_id(from.at("sep").item(1))}}});
  } else if (type == "TemplateProcessing") {
    Template parts;
    const JsonFields list = from.at("single");
    for (size_t k = 0; k < list.size(); ++k) {
      const JsonFields part = list.item(k);
      if (part.has("Sequence")) {
        if (part.at("Sequence").string("id") == "A") parts.push_back({true, {}});
        continue;
      }
      const JsonFields ids = from.at("special_tokens").at(part.at("SpecialToken").string("id")).at("ids");
      parts.push_back({});
      for (size_t i = 0; i < ids.size(); ++i) parts.back().ids.push_back(read_id(ids.item(i)));
    }
    steps_.push_back(std::move(parts));
  } else if (type != "ByteLevel") {
    from.fail("the post-processor '" + type + "' is not known");
  }
}

std::vector<TokenSpan> PostProcessor::apply(std::vector<TokenSpan> tokens, bool add_special, size_t text_size) const {
  if (!add_special) return tokens;
  for (const Template& parts : steps_) {
    std::vector<TokenSpan> result;
    bool text_seen = false;
    for (const Part& part : parts) {
      const int64_t at = text_seen ? static_cast<int64_t>(text_size) : 0;
      if (part.is_text) result.insert(result.end(), tokens.begin(), tokens.end());
      for (const int32_t id : part.ids) result.push_back({id, at, at});
      text_seen = text_seen || part.is_text;
    }
    tokens = std::move(result);
  }
  return tokens;
}

}  // namespace nibble
