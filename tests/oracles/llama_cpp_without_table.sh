#!/usr/bin/env bash
# Builds llama.cpp b11549 (from the source package of xllamacpp) as it is but for one line: its CPU computes GELU instead of looking it
# up in a table of f16. Prints the path of the library, for LLAMA_CPP_WITHOUT_TABLE of gguf_families.py and gguf_llama_cpp.py.
#
#     tests/oracles/llama_cpp_without_table.sh DIR      (cmake, ninja, a C++ compiler and pip; some minutes)
set -euo pipefail
directory=${1:?a directory for the source and the libraries}
mkdir -p "$directory"
cd "$directory"
package=xllamacpp-2026.10.11549
if [ ! -d source ]; then
  "${PYTHON:-python3}" -m pip download --quiet --no-deps --no-binary xllamacpp "xllamacpp==${package#xllamacpp-}" >&2
  tar -xzf "$package.tar.gz" "$package/thirdparty/llama.cpp"
  mv "$package/thirdparty/llama.cpp" source
fi
vectors=source/ggml/src/ggml-cpu/vec.h
if ! grep -q '^#ifdef GGML_GELU_FP16$' $vectors; then
  echo "$vectors has no GGML_GELU_FP16: not the source that this is for" >&2
  exit 1
fi
sed -i '/^#define GGML_GELU_FP16$/d' $vectors
cmake -S source -B build -G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_C{,XX}_FLAGS_RELEASE="-O1 -DNDEBUG" -DGGML_OPENMP=OFF -DGGML_LLAMAFILE=OFF -DLLAMA_OPENSSL=OFF \
  -DLLAMA_BUILD_{COMMON,TESTS,TOOLS,EXAMPLES,SERVER,APP}=OFF >&2
nice -n 19 ninja -C build -j 2 llama >&2
echo "$PWD/build/bin/libllama.so"
