#include "nibble/parallel/sharding/gathered.h"

#include <utility>

#include "nibble/core/io/hub/checkpoint_dir.h"

namespace nibble {

GatheredBytes::GatheredBytes(std::vector<Tensor*> tensors, FlatLayout layout, size_t element_bytes, Communicator& ranks,
                             MemoryPool& pool, std::string what)
    : tensors_(std::move(tensors)),
      layout_(std::move(layout)),
      element_bytes_(element_bytes),
      ranks_(ranks),
      pool_(pool),
      what_(std::move(what)) {
  for (const int64_t bound : layout_.shard_bounds()) bounds_.push_back(static_cast<size_t>(bound) * element_bytes_);
  const size_t me = static_cast<size_t>(ranks_.rank());
  shard_ = Tensor::zeros(pool_, {static_cast<int64_t>(bounds_[me + 1] - bounds_[me])}, DType::u8, what_ + " (shard)");
  for (const FlatPart& part : layout_.parts(ranks_.rank())) {
    const Tensor& tensor = *tensors_[part.tensor];
    shard_.device().copy(tensor.address() + static_cast<size_t>(part.begin) * element_bytes_,
                         shard_.address() + static_cast<size_t>(part.at) * element_bytes_ - bounds_[me],
                         static_cast<size_t>(part.end - part.begin) * element_bytes_);
  }
  for (const Tensor* tensor : tensors_) release_pages(*tensor);
  bind(false);
}

void GatheredBytes::bind(bool unsharded) {
  for (size_t i = 0; i < tensors_.size(); ++i) {
    Tensor& tensor = *tensors_[i];
    tensor = unsharded ? Tensor::view(full_.storage(), static_cast<size_t>(layout_.offset(i)) * element_bytes_,
                                      tensor.shape(), tensor.dtype())
                       : Tensor::planned(tensor.shape(), tensor.dtype());
  }
}

void GatheredBytes::start() {
  if (gathered() || request_) return;
  const MemoryPool::Use use(pool_, MemoryUse::gathered);
  arriving_ = Tensor::empty(pool_, {static_cast<int64_t>(bounds_.back())}, DType::u8, what_ + " (gathered)");
  request_ = ranks_.start_all_gather("gather weights", shard_, arriving_, bounds_);
}

void GatheredBytes::acquire() {
  if (gathered()) return;
  start();
  request_->wait();
  request_.reset();
  full_ = std::exchange(arriving_, {});
  bind(true);
}

void GatheredBytes::release() {
  request_.reset();  // waits: a gather under way uses the buffer
  arriving_ = {};
  if (!gathered()) return;
  bind(false);
  full_ = {};
}

}  // namespace nibble
