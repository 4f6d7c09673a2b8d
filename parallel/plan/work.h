#pragma once
// Floating point operations of a model's passes, as the device without bytes counts them.

#include <vector>

#include "nibble/core/train/run/run.h"
#include "nibble/parallel/plan/job.h"

namespace nibble {

class MetaDevice;

/// Of one microbatch.
struct LayerWork {
  double forward = 0, backward = 0;
  double recompute = 0;  ///< what the backward pass computes besides where the layer is recomputed
};

struct ModelWork {
  std::vector<LayerWork> layers;  ///< [L]
  double head = 0;                ///< forward and backward
};

/// Runs one step of `model`, which is on `device`.
ModelWork count_work(Decoder& model, const MetaDevice& device, const Batch& batch, DType compute_dtype,
                     RankContext& rank);

/// Of one of `tensor` tensor-parallel ranks. Of layers that are alike and at like places one is run.
const ModelWork& model_work(const PlanJob& job, int64_t tensor);

/// tokens in documents of so many, of which a share has labels; `pairs`: every two of them are a group. Ids are below
/// both the vocabulary's size and the head's.
Batch planned_batch(int64_t tokens, int64_t document_length, double label_share, bool pairs,
                    const DecoderConfig& config, MemoryPool& pool);
/// A microbatch of the job.
Batch planned_batch(const PlanJob& job, const DecoderConfig& config, MemoryPool& pool);

/// What a share of the peak is made from: without what attention sees beyond a token, and without recomputing.
Work training_work(const PlanJob& job);

}  // namespace nibble
