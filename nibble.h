#pragma once
// The front door of the library: everything that a program which trains, merges or generates needs. docs/library.md is
// the guide, docs/examples has two programs to start from.

// What goes wrong, and what this build and machine are.
#include "nibble/core/base/error.h"
#include "nibble/core/base/machine.h"
#include "nibble/core/base/trace.h"

// One rank: memory, threads, communicator.
#include "nibble/core/comm/local_rank.h"

// Models: open, run, generate.
#include "nibble/core/models/decoder.h"
#include "nibble/core/models/generate.h"
#include "nibble/core/text/chat_template.h"
#include "nibble/core/text/tokenizer.h"
#include "nibble/recipes/init_model.h"
#include "nibble/recipes/open_model.h"
#include "nibble/recipes/tokenizers.h"

// Adapters and 4-bit weights.
#include "nibble/adapters/attach.h"
#include "nibble/adapters/peft_directory.h"
#include "nibble/quant/quantize_model.h"
#include "nibble/recipes/merge_model.h"

// Training: a whole recipe, or its parts.
#include "nibble/core/data/batches.h"
#include "nibble/core/data/dataset.h"
#include "nibble/core/train/optimizer.h"
#include "nibble/core/train/run.h"
#include "nibble/core/train/schedule.h"
#include "nibble/core/train/train_step.h"
#include "nibble/recipes/evaluate_model.h"
#include "nibble/recipes/recipe.h"
#include "nibble/recipes/report/report.h"
#include "nibble/recipes/shipped.h"
#include "nibble/recipes/train.h"
