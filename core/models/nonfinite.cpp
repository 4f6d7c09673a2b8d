#include "nibble/core/models/nonfinite.h"

#include <cmath>

#include "nibble/core/base/error.h"
#include "nibble/core/io/hub/checkpoint_dir.h"
#include "nibble/core/models/load.h"
#include "nibble/core/ops/elementwise.h"

namespace nibble {

std::string nonfinite_text(const std::string& what, const Tensor& tensor) {
  const DType dtype = tensor.dtype();
  if (dtype != DType::f32 && dtype != DType::bf16 && dtype != DType::f16) return "";
  const int64_t at = ops::first_nonfinite(tensor), count = tensor.numel();
  if (at < 0) return "";
  MemoryPool host;
  Tensor value = Tensor::empty(host, {1}, DType::f32);
  ops::cast(tensor.reshape({count}).rows(at, at + 1).to(host), value);
  const float bad = value.data<const float>()[0];
  return what + ", element " + std::to_string(at) + " of " + std::to_string(count) + ", is " +
         (std::isnan(bad) ? "nan" : std::to_string(bad));  // never "-nan"
}

std::string nonfinite_text(const std::vector<NamedTensor>& tensors) {
  for (const NamedTensor& tensor : tensors) {
    std::string found = nonfinite_text(tensor.name, tensor.value);
    release_pages(tensor.value);
    if (!found.empty()) return found;
  }
  return "";
}

void throw_nonfinite(const std::string& place, Decoder& model) {
  const std::string weight = nonfinite_text(state_dict(model));
  throw NumericError(place, "not finite" + (weight.empty() ? "" : ": " + weight), "check the model's weights");
}

}  // namespace nibble
