# Everything nibble stands on but MPI (nibble_mpi alone has it), in one interface target. All of it comes from Debian packages (tests/packages.sh).
find_package(PkgConfig REQUIRED)
find_package(OpenMP REQUIRED)
find_package(Eigen3 REQUIRED NO_MODULE)
find_package(nlohmann_json REQUIRED)
find_package(CLI11 REQUIRED)  # of the program only
find_package(MPI REQUIRED COMPONENTS CXX)
find_package(ICU REQUIRED COMPONENTS uc i18n)
pkg_check_modules(OPENBLAS REQUIRED IMPORTED_TARGET openblas)  # the library takes its header and loads it when asked to
pkg_check_modules(HWY REQUIRED IMPORTED_TARGET libhwy)  # vectors of kernels on any CPU
pkg_check_modules(SENTENCEPIECE REQUIRED IMPORTED_TARGET sentencepiece)  # its models' file format and normalization
pkg_check_modules(ONIGURUMA REQUIRED IMPORTED_TARGET oniguruma)  # expressions of tokenizers and adapters
pkg_check_modules(XXHASH REQUIRED IMPORTED_TARGET libxxhash)  # hashes of checkpoints and inputs
pkg_check_modules(ZLIB REQUIRED IMPORTED_TARGET zlib)
pkg_check_modules(ZSTD REQUIRED IMPORTED_TARGET libzstd)  # with zlib and Snappy: compressed data, Parquet, Arrow
pkg_check_modules(YAML_CPP REQUIRED IMPORTED_TARGET yaml-cpp)
pkg_check_modules(SNAPPY REQUIRED IMPORTED_TARGET snappy)
pkg_check_modules(GMP REQUIRED IMPORTED_TARGET gmp)  # integers of chat templates, which Python does not bound
pkg_check_modules(EDIT REQUIRED IMPORTED_TARGET libedit)  # of the program only

add_library(nibble_dependencies INTERFACE)
target_link_options(nibble_dependencies INTERFACE LINKER:--as-needed)
target_link_libraries(nibble_dependencies INTERFACE
  OpenMP::OpenMP_CXX Eigen3::Eigen nlohmann_json::nlohmann_json ICU::uc ICU::i18n
  PkgConfig::HWY PkgConfig::SENTENCEPIECE PkgConfig::ONIGURUMA PkgConfig::XXHASH
  PkgConfig::ZLIB PkgConfig::ZSTD PkgConfig::YAML_CPP PkgConfig::SNAPPY PkgConfig::GMP)
