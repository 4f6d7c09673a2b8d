#pragma once
// The contract of a SageMaker training container: what the service puts under /opt/ml and what it looks for there when
// the container ends (docs.aws.amazon.com/sagemaker, "How Amazon SageMaker AI Runs Your Training Image").

#include <filesystem>
#include <string>
#include <vector>

#include "nibble/core/base/rank_context.h"
#include "nibble/core/train/telemetry/observer.h"

namespace nibble {

/// A training job as its files describe it.
struct SagemakerJob {
  std::filesystem::path base;          ///< "/opt/ml"
  std::string recipe_text;             ///< the recipe before overrides
  std::string recipe_place;            ///< where it came from, for messages
  std::vector<std::string> overrides;  ///< from channels and hyperparameters
};

/// Reads `base`/input/config. Hyperparameters are strings: `recipe` names a shipped recipe ("qlora" by default) or a
/// file of a channel, keys with or without their section ("optimizer.lr" or "lr") override the recipe, those that begin
/// with "sagemaker_" are the service's own. Channels: `model` (model.path), `train` or `training` (data.train), `eval`,
/// `validation` or `test` (data.eval), `tokenizer` (model.tokenizer). The run lives in `base`/checkpoints, which the
/// service copies to S3 and back, so an interrupted job resumes. Throws InputError or UsageError naming file and key.
SagemakerJob read_sagemaker_job(const std::filesystem::path& base);

/// Trains, and puts adapter or model, report.html and metrics.jsonl into `base`/model.
void run_sagemaker_job(const SagemakerJob& job, const Observer& observer);

/// Writes `base`/output/failure, whose first 1024 characters the service shows as the reason.
void write_sagemaker_failure(const std::filesystem::path& base, const std::string& reason);

}  // namespace nibble
