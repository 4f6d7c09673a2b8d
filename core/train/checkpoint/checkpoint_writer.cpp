#include "nibble/core/train/checkpoint/checkpoint_writer.h"

#include <chrono>

#include "nibble/core/base/error.h"
#include "nibble/core/train/checkpoint/checkpoint_room.h"

namespace nibble {

CheckpointWriter::CheckpointWriter(std::filesystem::path directory, MemoryPool& pool, std::function<bool()> make_room)
    : directory_(std::move(directory)), pool_(pool), make_room_(std::move(make_room)) {}

CheckpointWriter::~CheckpointWriter() {
  if (outcome_.valid()) outcome_.wait();
}

void CheckpointWriter::copy(const std::vector<CheckpointSlice>& slices, std::vector<Tensor>& kept) {
  const MemoryPool::Use use(pool_, MemoryUse::checkpoint);
  kept.resize(slices.size());
  for (size_t i = 0; i < slices.size(); ++i) {
    const Tensor& value = slices[i].value;
    if (!kept[i] || kept[i].shape() != value.shape()) {
      kept[i] = Tensor::empty(pool_.host(), value.shape(), value.dtype(), "checkpoint copy");
    }
    value.device().copy(value.address(), kept[i].address(), value.bytes());
  }
}

bool CheckpointWriter::copy(const std::vector<CheckpointSlice>& trainable,
                            const std::vector<CheckpointSlice>& optimizer) {
  if (bytes_of(trainable) + bytes_of(optimizer) > kLargestCopy) return false;
  copy(trainable, trainable_);
  copy(optimizer, optimizer_);
  return true;
}

void CheckpointWriter::start(const TrainingState& state, const std::vector<CheckpointSlice>& trainable,
                             const std::vector<CheckpointSlice>& optimizer, std::function<void()> first,
                             std::function<void(bool)> last, bool behind) {
  NIBBLE_CHECK(!outcome_.valid(), "a checkpoint is under way");
  const bool copied = behind && copy(trainable, optimizer);
  std::vector<CheckpointSlice> values = trainable, moments = optimizer;
  for (size_t i = 0; i < values.size(); ++i)
    values[i].value = copied ? trainable_[i] : values[i].value.to(pool_.host());
  for (size_t i = 0; i < moments.size(); ++i) {
    moments[i].value = copied ? optimizer_[i] : moments[i].value.to(pool_.host());
  }
  outcome_ = std::async(copied ? std::launch::async : std::launch::deferred,
                        [directory = directory_, make_room = make_room_, state, values = std::move(values),
                         moments = std::move(moments), first = std::move(first), last = std::move(last)] {
                          Outcome outcome{state.step, {}, {}};
                          try {
                            const auto save = [&] {
                              if (first) first();
                              return save_checkpoint(directory, state, values, moments);
                            };
                            outcome.path = save_in_room(save, make_room);
                          } catch (const Error& error) {
                            outcome.failure = error.what();
                            outcome.exit_code = error.exit_code();
                          } catch (const std::filesystem::filesystem_error& error) {
                            outcome.failure = error.what();
                            outcome.exit_code = 4;
                          }
                          if (last) last(outcome.failure.empty());
                          return outcome;
                        });
  if (!copied) outcome_.wait();
}

bool CheckpointWriter::done() const {
  return outcome_.valid() && outcome_.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
}

CheckpointWriter::Outcome CheckpointWriter::outcome() { return outcome_.get(); }

uint64_t bytes_of(const std::vector<CheckpointSlice>& slices) {
  uint64_t bytes = 0;
  for (const CheckpointSlice& slice : slices) bytes += slice.value.bytes();
  return bytes;
}

}  // namespace nibble
