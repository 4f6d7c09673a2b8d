// Goes on from a prompt with a base model and an adapter.
//   generate_with_adapter MODEL_DIR ADAPTER_DIR PROMPT

#include <nibble/nibble.h>

#include <cstdio>

int main(int argc, char** argv) {
  if (argc < 4) return std::fprintf(stderr, "usage: generate_with_adapter MODEL_DIR ADAPTER_DIR PROMPT\n"), 2;
  try {
    nibble::LocalRank rank;
    nibble::ModelRecipe base;
    base.path = argv[1];
    nibble::Decoder model = nibble::open_model(base, argv[2], nibble::Train::nothing, rank.context());
    const auto tokenizer = nibble::load_tokenizer(argv[1]);

    nibble::GenerateOptions options;
    options.max_new_tokens = 40;
    options.stop_ids = model.config().eos_ids;
    options.sampling.vocabulary = tokenizer->vocab_size();
    const nibble::StepContext step{.rank = rank.context(), .compute_dtype = nibble::compute_dtype_of("auto")};
    nibble::StreamDecoder text(*tokenizer);
    nibble::generate(model, tokenizer->encode(argv[3]), options, step, [&](int32_t id) {
      std::fputs(text.push(id).c_str(), stdout);
      return true;
    });
    std::printf("%s\n", text.finish().c_str());
  } catch (const nibble::Error& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return error.exit_code();
  }
  return 0;
}
