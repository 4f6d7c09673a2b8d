#pragma once
// The commands. Each lives in a file of its own and adds itself, with its flags, to `nibble`, the whole program. Errors
// are thrown and become a line and an exit code in main.cpp.

#include "nibble/cli/command_line/command.h"

namespace nibble::cli {

/// Heading in --help of the commands in checking/: numbers and text to compare with other software.
inline constexpr const char* kCheckingTools = "Tools for checking";

using AddCommand = void(Command& nibble);
AddCommand add_train_command, add_plan_command, add_launch_command, add_validate_command, add_preview_command,
    add_quantize_command, add_merge_command, add_combine_command, add_export_command, add_import_command,
    add_generate_command, add_chat_command, add_eval_command, add_logits_command, add_gradients_command,
    add_logprobs_command, add_score_command, add_tokenize_command, add_tokenizer_command, add_template_command,
    add_init_command, add_inspect_command, add_recipes_command, add_report_command, add_compare_command,
    add_sweep_command, add_doctor_command, add_sagemaker_command;

}  // namespace nibble::cli
