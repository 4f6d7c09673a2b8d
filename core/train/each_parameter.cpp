#include "nibble/core/train/each_parameter.h"

#include <algorithm>

#include "nibble/core/base/parallel.h"

namespace nibble {

void for_each_parameter(const std::vector<Parameter*>& parameters, const std::function<void(size_t)>& body) {
  constexpr int64_t kPiece = int64_t{1} << 15;  // elements, as ops cut them
  const auto size = [&](size_t i) { return parameters[i]->value.numel(); };
  std::vector<size_t> small;
  for (size_t i = 0; i < parameters.size(); ++i) {  // a device without bytes counts what it is asked for, on one thread
    if (size(i) < threads() * kPiece && parameters[i]->value.device().has_bytes()) small.push_back(i);
  }
  if (threads() == 1 || std::ssize(small) < 2 * threads()) small.clear();
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (small.empty() || size(i) >= threads() * kPiece) body(i);
  }
  std::ranges::stable_sort(small, std::greater(), size);  // so that none of the larger ones is left for the end
  parallel_for(std::ssize(small), 1, [&](int64_t k, int64_t) { body(small[static_cast<size_t>(k)]); });
}

}  // namespace nibble
