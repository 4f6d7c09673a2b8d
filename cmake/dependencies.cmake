# Everything nibble stands on but MPI (nibble_mpi alone has it), in one interface target. All of it comes from Debian packages (tests/packages.sh).
find_package(PkgConfig REQUIRED)
find_package(OpenMP REQUIRED)
find_package(Eigen3 REQUIRED NO_MODULE)
find_package(nlohmann_json REQUIRED)
find_package(CLI11 REQUIRED)
find_package(MPI REQUIRED COMPONENTS CXX)
find_package(ICU REQUIRED COMPONENTS uc i18n)
pkg_check_modules(OPENBLAS REQUIRED IMPORTED_TARGET openblas)
pkg_check_modules(HWY REQUIRED IMPORTED_TARGET libhwy)
pkg_check_modules(SENTENCEPIECE REQUIRED IMPORTED_TARGET sentencepiece)
pkg_check_modules(ONIGURUMA REQUIRED IMPORTED_TARGET oniguruma)
pkg_check_modules(XXHASH REQUIRED IMPORTED_TARGET libxxhash)
pkg_check_modules(ZLIB REQUIRED IMPORTED_TARGET zlib)
pkg_check_modules(ZSTD REQUIRED IMPORTED_TARGET libzstd)
pkg_check_modules(YAML_CPP REQUIRED IMPORTED_TARGET yaml-cpp)
pkg_check_modules(SNAPPY REQUIRED IMPORTED_TARGET snappy)
pkg_check_modules(GMP REQUIRED IMPORTED_TARGET gmp)
pkg_check_modules(EDIT REQUIRED IMPORTED_TARGET libedit)  # of the program only

add_library(nibble_dependencies INTERFACE)
# OpenBLAS is loaded when it is asked for (core/ops/cpu/gemm/gemm_openblas.cpp): what is not called is not linked.
target_link_options(nibble_dependencies INTERFACE LINKER:--as-needed)
target_link_libraries(nibble_dependencies INTERFACE
  OpenMP::OpenMP_CXX Eigen3::Eigen nlohmann_json::nlohmann_json CLI11::CLI11 ICU::uc ICU::i18n
  PkgConfig::OPENBLAS PkgConfig::HWY PkgConfig::SENTENCEPIECE PkgConfig::ONIGURUMA PkgConfig::XXHASH
  PkgConfig::ZLIB PkgConfig::ZSTD PkgConfig::YAML_CPP PkgConfig::SNAPPY PkgConfig::GMP)
