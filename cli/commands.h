#pragma once
// The commands. Each lives in a file of its own and adds itself, with its flags, to `nibble`, the whole program. Errors
// are thrown and become a line and an exit code in main.cpp.

#include "nibble/cli/command_line/command.h"

namespace nibble::cli {

/// Heading in --help of the commands in checking/: numbers and text to compare with other software.
inline constexpr const char* kCheckingTools = "Tools for checking";

void add_train_command(Command& nibble);
void add_plan_command(Command& nibble);
void add_launch_command(Command& nibble);
void add_validate_command(Command& nibble);
void add_preview_command(Command& nibble);
void add_quantize_command(Command& nibble);
void add_merge_command(Command& nibble);
void add_combine_command(Command& nibble);
void add_export_command(Command& nibble);
void add_import_command(Command& nibble);
void add_generate_command(Command& nibble);
void add_chat_command(Command& nibble);
void add_eval_command(Command& nibble);
void add_logits_command(Command& nibble);
void add_gradients_command(Command& nibble);
void add_logprobs_command(Command& nibble);
void add_score_command(Command& nibble);
void add_tokenize_command(Command& nibble);
void add_tokenizer_command(Command& nibble);
void add_template_command(Command& nibble);
void add_init_command(Command& nibble);
void add_inspect_command(Command& nibble);
void add_recipes_command(Command& nibble);
void add_report_command(Command& nibble);
void add_compare_command(Command& nibble);
void add_sweep_command(Command& nibble);
void add_doctor_command(Command& nibble);
void add_sagemaker_command(Command& nibble);

}  // namespace nibble::cli
