#include "nibble/core/data/batches.h"

#include <algorithm>
#include <cmath>
#include <mutex>

#include "nibble/core/base/error.h"

namespace nibble {

struct Batches::Impl {
  Dataset dataset;
  BatchOptions options;
  // A plan is a pure function of the epoch; these only save making it again.
  mutable std::mutex mutex;
  mutable std::shared_ptr<const EpochPlan> plan;
  mutable int64_t plan_epoch_number = -1;
  mutable std::vector<int64_t> steps_before = {0};  // [e]: steps of the epochs before e

  int64_t sequences_in_step() const { return options.microbatch_size * options.accumulate; }

  std::shared_ptr<const EpochPlan> plan_of(int64_t epoch) const {
    if (plan_epoch_number != epoch) {
      plan = std::make_shared<const EpochPlan>(plan_epoch(dataset, options.order, static_cast<uint64_t>(epoch)));
      plan->release();
      plan_epoch_number = epoch;
    }
    return plan;
  }

  // Without packing by fit every epoch has as many sequences as the first.
  bool epochs_are_alike() const {
    const bool all_kept = std::all_of(dataset.weights().begin(), dataset.weights().end(),
                                      [](double weight) { return weight == std::floor(weight); });
    return !options.order.shuffle ? all_kept : all_kept && !options.order.pack && !dataset.has_text();
  }

  int64_t steps_of_plan(int64_t epoch) const {
    const int64_t n = sequences_in_step();
    return (plan_of(epoch)->size() + n - 1) / n;
  }

  int64_t steps_before_epoch(int64_t epoch) const {
    if (alike) return epoch * first_epoch_steps;
    while (static_cast<int64_t>(steps_before.size()) <= epoch) {
      steps_before.push_back(steps_before.back() + steps_of_plan(static_cast<int64_t>(steps_before.size()) - 1));
    }
    return steps_before[static_cast<size_t>(epoch)];
  }

  struct Place {
    int64_t epoch, step_in_epoch;
    std::shared_ptr<const EpochPlan> plan;
    int64_t begin, end;  // sequences
  };

  Place find(int64_t step) const {
    NIBBLE_CHECK(step >= 1, "steps count from 1");
    const std::lock_guard lock(mutex);
    int64_t epoch = 0;
    if (alike) {
      epoch = (step - 1) / first_epoch_steps;
    } else {
      while (steps_before_epoch(epoch + 1) < step) ++epoch;
    }
    Place place{epoch, step - 1 - steps_before_epoch(epoch), plan_of(epoch), 0, 0};
    place.begin = place.step_in_epoch * sequences_in_step();
    place.end = std::min(place.begin + sequences_in_step(), place.plan->size());
    return place;
  }

  bool alike = false;
  int64_t first_epoch_steps = 0;
};

Batches::Batches(Dataset dataset, BatchOptions options) : impl_(std::make_unique<Impl>()) {
  if (options.microbatch_size < 1) throw UsageError("must be at least 1", "", "train.microbatch_size");
  if (options.accumulate < 1) throw UsageError("must be at least 1", "", "train.accumulate");
  if (options.microbatch_size > INT32_MAX || options.accumulate > INT32_MAX) {
    throw UsageError("must be below 2^31", "", "train.accumulate");
  }
  impl_->dataset = std::move(dataset);
  impl_->options = options;
  impl_->alike = impl_->epochs_are_alike();
  impl_->first_epoch_steps = impl_->steps_of_plan(0);
  if (impl_->first_epoch_steps > 0) return;
  const std::vector<double>& weights = impl_->dataset.weights();
  const bool drew_none = impl_->dataset.size() > 0 && std::ranges::any_of(weights, [](double w) { return w < 1; });
  if (!drew_none) throw InputError("data", "no sequence has a token to predict");
  throw InputError("data", "the first epoch takes no sample, by the weights of the files", "raise the weights");
}

Batches::~Batches() = default;
Batches::Batches(Batches&&) noexcept = default;
Batches& Batches::operator=(Batches&&) noexcept = default;

const Dataset& Batches::dataset() const { return impl_->dataset; }

int64_t Batches::steps_in_epoch(int64_t epoch) const {
  NIBBLE_CHECK(epoch >= 0, "epochs count from 0");
  const std::lock_guard lock(impl_->mutex);
  return impl_->steps_before_epoch(epoch + 1) - impl_->steps_before_epoch(epoch);
}

int64_t Batches::steps_in(double epochs) const {
  if (!(epochs > 0 && epochs < 1e6)) throw UsageError("must be above 0 and below 1000000", "", "train.epochs");
  const auto whole = static_cast<int64_t>(std::floor(epochs));
  const double part = epochs - static_cast<double>(whole);
  const std::lock_guard lock(impl_->mutex);
  const int64_t steps = impl_->steps_before_epoch(whole);
  if (part == 0) return steps;
  const auto next = static_cast<double>(impl_->steps_before_epoch(whole + 1) - steps);
  return steps + static_cast<int64_t>(std::ceil(part * next));
}

StepInfo Batches::info(int64_t step) const {
  const Impl::Place place = impl_->find(step);
  StepInfo info;
  info.epoch = place.epoch;
  info.step_in_epoch = place.step_in_epoch;
  info.sequences = place.end - place.begin;
  info.microbatches = (info.sequences + impl_->options.microbatch_size - 1) / impl_->options.microbatch_size;
  for (int64_t k = place.begin; k < place.end; ++k) {
    for (const Piece& piece : place.plan->sequence(k)) {
      ++info.samples;
      info.tokens += piece.end - piece.begin;
      info.label_tokens += impl_->dataset.trained(piece.sample, piece.begin, piece.end);
    }
  }
  place.plan->release();
  return info;
}

std::vector<Sample> Batches::samples(int64_t step, int64_t microbatch) const {
  const Impl::Place place = impl_->find(step);
  const int64_t size = impl_->options.microbatch_size;
  const int64_t begin = place.begin + microbatch * size;
  NIBBLE_CHECK(microbatch >= 0 && begin < place.end, "the step has this microbatch");
  std::vector<Sample> samples;
  for (int64_t k = begin; k < std::min(begin + size, place.end); ++k) {
    uint32_t group = 0;
    for (const Piece& piece : place.plan->sequence(k)) {
      samples.push_back(impl_->dataset.sample(piece.sample, piece.begin, piece.end, piece.number));
      if (!impl_->dataset.continues_group(piece.sample)) group = piece.number;  // that of its first sample
      samples.back().group = group;
    }
  }
  place.plan->release();
  return samples;
}

Batch Batches::at(int64_t step, int64_t microbatch, MemoryPool& pool) const {
  return make_batch(samples(step, microbatch), pool);
}

}  // namespace nibble
