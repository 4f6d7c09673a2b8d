#include <algorithm>

#include "nibble/core/text/tokenizers/tokenizer.h"

namespace nibble {

namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

// A character has four bytes at most. Ids beyond that which still end in U+FFFD are broken, not incomplete.
constexpr size_t kHeldIds = 8;

}  // namespace

std::string StreamDecoder::push(int32_t id) {
  window_.push_back(id);
  const std::string whole = tokenizer_.decode(window_, skip_special_);
  if (whole.ends_with(kReplacement) && window_.size() - emitted_ids_ < kHeldIds) return "";
  return finish();
}

std::string StreamDecoder::finish() {
  // The ids before are decoded with the new ones because the first token of a text may lose its blank.
  const std::span<const int32_t> window(window_);
  const std::string before = tokenizer_.decode(window.first(emitted_ids_), skip_special_);
  const std::string whole = tokenizer_.decode(window, skip_special_);
  window_.erase(window_.begin(), window_.begin() + static_cast<ptrdiff_t>(emitted_ids_));
  emitted_ids_ = window_.size();
  // A broken byte turns those that stood in front of it into U+FFFD too, when they are out already.
  auto same = static_cast<size_t>(std::ranges::mismatch(before, whole).in2 - whole.begin());
  while (same > 0 && same < whole.size() && (static_cast<unsigned char>(whole[same]) & 0xC0U) == 0x80U) --same;
  return whole.substr(same);
}

}  // namespace nibble
