#pragma once
// The commands for shells and for man: both read what --help says, so that nothing is written twice.

namespace CLI {
class App;
}

namespace nibble::cli {

/// `nibble completion bash|zsh|fish` and `nibble man --out DIR`, over all commands that `app` has by then.
void add_manual_commands(CLI::App& app);

}  // namespace nibble::cli
