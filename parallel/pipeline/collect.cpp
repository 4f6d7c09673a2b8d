#include "nibble/parallel/pipeline/collect.h"

#include <cstring>
#include <sstream>

namespace nibble {

namespace {

constexpr int64_t kHeaderBytes = 1024;

// "dtype rank sizes... name"; an empty text ends the stage.
Tensor header_of(const NamedTensor* tensor, MemoryPool& pool) {
  std::ostringstream text;
  if (tensor) {
    text << static_cast<int>(tensor->value.dtype()) << ' ' << tensor->value.rank();
    for (const int64_t size : tensor->value.shape()) text << ' ' << size;
    text << ' ' << tensor->name;
  }
  const std::string bytes = text.str();
  NIBBLE_CHECK(static_cast<int64_t>(bytes.size()) < kHeaderBytes, "name of a tensor");
  Tensor header = Tensor::zeros(pool, {kHeaderBytes}, DType::u8);
  std::memcpy(header.mutable_raw(), bytes.data(), bytes.size());
  return header;
}

void send_one(Communicator& stages, const NamedTensor* tensor, MemoryPool& pool) {
  stages.send("export", header_of(tensor, pool), 0);
  if (!tensor) return;
  stages.send("export", tensor->value, 0);
  // Not before it has arrived may the tensor go.
  Tensor arrived = Tensor::zeros(pool, {1}, DType::u8);
  stages.receive("export", arrived, 0);
}

bool receive_one(Communicator& stages, int from, MemoryPool& pool,
                 const std::function<void(const NamedTensor&)>& take) {
  Tensor header = Tensor::zeros(pool, {kHeaderBytes}, DType::u8);
  stages.receive("export", header, from);
  std::istringstream text(reinterpret_cast<const char*>(header.raw()));
  int dtype = 0;
  size_t rank = 0;
  NamedTensor tensor;
  if (!(text >> dtype >> rank)) return false;
  Shape shape(rank);
  for (int64_t& size : shape) text >> size;
  text >> tensor.name;
  tensor.value = Tensor::empty(pool, shape, static_cast<DType>(dtype), tensor.name);
  stages.receive("export", tensor.value, from);
  stages.send("export", Tensor::zeros(pool, {1}, DType::u8), from);
  take(tensor);
  return true;
}

}  // namespace

void collect_stages(const Mesh& mesh, MemoryPool& pool,
                    const std::function<void(const std::function<void(const NamedTensor&)>& give)>& mine,
                    const std::function<void(const NamedTensor&)>& take) {
  Communicator& stages = mesh.pipeline();
  const bool gives = mesh.data().rank() == 0 && mesh.tensor().rank() == 0, first = stages.rank() == 0;
  mine([&](const NamedTensor& tensor) {
    if (gives && first) take({tensor.name, tensor.value.to(pool)});
    if (gives && !first) send_one(stages, &tensor, pool);
  });
  if (gives && !first) send_one(stages, nullptr, pool);
  for (int stage = 1; gives && first && stage < stages.size(); ++stage) {
    while (receive_one(stages, stage, pool, take)) {
    }
  }
}

}  // namespace nibble
