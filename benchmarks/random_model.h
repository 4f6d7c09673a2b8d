#pragma once
// Model directories with random weights in the shapes of published models, made once as `nibble init` makes them.

#include <filesystem>
#include <string>

#include "nibble/core/io/files/atomic_file.h"
#include "nibble/recipes/models/init_model.h"
#include "shapes.h"

namespace nibble::benchmarks {

/// MODELS/SHAPE-DTYPE, made if it is not there. dtype: "bf16", "nf4" and so on, as init_model takes it.
inline std::filesystem::path random_model(const std::string& shape, const std::string& dtype,
                                          const std::filesystem::path& models) {
  const std::filesystem::path directory = models / (shape + "-" + dtype);
  if (!std::filesystem::exists(directory / "config.json")) {
    std::filesystem::create_directories(models);
    const std::filesystem::path config = models / (shape + ".json");
    write_file_atomically(config, shape_of(shape).config_json());
    init_model({.config = config.string(), .out = directory.string(), .dtype = dtype});
  }
  return directory;
}

}  // namespace nibble::benchmarks
