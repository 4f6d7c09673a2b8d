#include "nibble/core/text/tokenizers/tokenizer.h"

#include <algorithm>

namespace nibble {

std::vector<int32_t> Tokenizer::prefix_ids() const {
  constexpr std::string_view kProbe = "a";
  std::vector<int32_t> with = encode(kProbe, true);
  const std::vector<int32_t> without = encode(kProbe, false);
  with.erase(std::search(with.begin(), with.end(), without.begin(), without.end()), with.end());
  return with;
}

}  // namespace nibble
