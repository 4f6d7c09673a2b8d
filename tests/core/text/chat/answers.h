#pragma once
#include <string>
#include <vector>

#include "nibble/core/text/chat/chat_template.h"

namespace nibble::test {

/// The texts that are trained.
inline std::vector<std::string> answers(const RenderedChat& chat) {
  std::vector<std::string> texts;
  for (const TextSpan& span : chat.answers) texts.push_back(chat.text.substr(span.begin, span.end - span.begin));
  return texts;
}

}  // namespace nibble::test
