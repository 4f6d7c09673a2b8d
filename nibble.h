#pragma once
// The front door of the library: everything that a program which trains, merges or generates needs. docs/library.md is
// the guide, docs/examples has four programs to start from.

// What goes wrong, and what this build and machine are.
#include "nibble/core/base/error.h"
#include "nibble/core/base/version.h"
#include "nibble/core/train/telemetry/trace.h"
#include "nibble/recipes/environment/machine.h"

// One rank: memory, threads, communicator.
#include "nibble/core/comm/local_rank.h"

// Models: open, run, generate.
#include "nibble/core/models/decoder.h"
#include "nibble/core/models/generation/generate.h"
#include "nibble/core/text/chat/chat_template.h"
#include "nibble/core/text/tokenizers/tokenizer.h"
#include "nibble/recipes/models/init_model.h"
#include "nibble/recipes/models/open_model.h"
#include "nibble/recipes/models/tokenizers.h"

// Adapters and 4-bit weights.
#include "nibble/adapters/attach.h"
#include "nibble/adapters/peft/peft_directory.h"
#include "nibble/quant/quantize_model.h"
#include "nibble/recipes/models/merge_model.h"

// Training: a whole recipe, or its parts.
#include "nibble/core/data/batches.h"
#include "nibble/core/data/dataset.h"
#include "nibble/core/train/optimizer.h"
#include "nibble/core/train/run/run.h"
#include "nibble/core/train/schedule.h"
#include "nibble/core/train/train_step.h"
#include "nibble/recipes/config/recipe.h"
#include "nibble/recipes/config/shipped.h"
#include "nibble/recipes/evaluation/evaluate_model.h"
#include "nibble/recipes/report/report.h"
#include "nibble/recipes/train.h"
