#pragma once
// A microbatch without padding: documents stand one after another, each attends only to itself.

#include <memory>
#include <span>
#include <vector>

#include "nibble/core/ops/attention.h"
#include "nibble/core/tensor/tensor.h"

namespace nibble {

/// Label of a token that is not trained (as in PyTorch and Hugging Face).
inline constexpr int32_t kIgnoreLabel = -100;

/// One document: token ids and, of the same length, labels that are not shifted (labels[t] is ids[t] or kIgnoreLabel;
/// position t predicts labels[t + 1]).
struct Sample {
  std::vector<int32_t> ids;
  std::vector<int32_t> labels;
  uint64_t index = 0;  ///< global sample number, keys dropout
  int64_t row = -1;    ///< its number in its data set; -1: of none
  /// Samples that stand together under one number belong together: a pair, the answers to a prompt. -1: to no other.
  int64_t group = -1;
  /// What the data say of it beside tokens: a verdict (1 or 0), a margin, classes.
  std::vector<float> values = {};
  /// Log-probabilities that a reference gives the tokens, by token (the first has none); empty: not known.
  std::vector<float> reference = {};
  /// The same of the policy that wrote an answer; empty: it is the one that is trained, as it is now.
  std::vector<float> old = {};
  bool prompt_counts = false;  ///< tokens without a label are targets too
};

/// The first token of the sample that has a label, or their number.
size_t answer_begin(const Sample& sample);

/// What a Decoder computes on. T tokens in all.
struct Batch {
  Tensor ids;                              ///< [T] i32
  Tensor targets;                          ///< [T] i32: the label that position t predicts, or kIgnoreLabel
  Tensor positions;                        ///< [T] i32, from 0 in each document
  Tensor row_keys;                         ///< [T] i64: (sample index << 32) + position
  std::vector<ops::AttentionSpan> spans;   ///< documents; of one with a hole the rows begin behind what it shares
  std::vector<int64_t> groups;             ///< where each group begins among the documents, and their number
  int64_t label_tokens = 0;                ///< targets that are not kIgnoreLabel
  std::vector<int64_t> answers;            ///< by document: its first row that predicts a labelled token, or its end
  std::vector<bool> answers_open;          ///< by document: its first token, which no row predicts, is labelled
  std::vector<std::vector<float>> values;  ///< by document: Sample::values
  Tensor reference;  ///< [T] f32 on the host: log-probabilities that a reference gives the targets; undefined: unknown
  Tensor old;        ///< likewise, of the policy that wrote the answers
  /// What an objective looks at before the loss of a step (Objective::survey); null: this batch.
  std::shared_ptr<const Batch> survey;
  /// With a KvCache: the sequence that each document continues, in rising order; empty: the first, the second, ...
  std::vector<int64_t> sequences;
};

/// Lays `samples` out as one batch. Samples with empty labels get no targets (inference).
Batch make_batch(std::span<const Sample> samples, MemoryPool& pool);
/// The same; share: samples of a group that begin with the same tokens have these once, where none of them but the
/// first has targets there. Their documents share a beginning (ops::AttentionSpan), so that the model has to be one
/// that DecoderConfig::documents_may_share().
Batch make_batch(std::span<const Sample> samples, MemoryPool& pool, bool share);

/// T of such a batch.
int64_t batch_rows(std::span<const Sample> samples, bool share);

/// Of the samples: T, or more where they share beginnings.
int64_t sample_tokens(const Batch& batch);

}  // namespace nibble
