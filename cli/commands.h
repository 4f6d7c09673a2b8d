#pragma once
// The commands. Each lives in a file of its own, registers its flags on `app` and runs from CLI11's callback; errors
// are thrown and become a line and an exit code in main.cpp.

namespace CLI {
class App;
}

namespace nibble::cli {

void add_train_command(CLI::App& app);
void add_validate_command(CLI::App& app);
void add_preview_command(CLI::App& app);
void add_quantize_command(CLI::App& app);
void add_merge_command(CLI::App& app);
void add_generate_command(CLI::App& app);
void add_chat_command(CLI::App& app);
void add_eval_command(CLI::App& app);
void add_logits_command(CLI::App& app);
void add_gradients_command(CLI::App& app);
void add_tokenize_command(CLI::App& app);
void add_tokenizer_command(CLI::App& app);
void add_init_command(CLI::App& app);
void add_inspect_command(CLI::App& app);
void add_recipes_command(CLI::App& app);

}  // namespace nibble::cli
