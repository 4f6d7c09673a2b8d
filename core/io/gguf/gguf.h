#pragma once
// GGUF, the file format of llama.cpp (ggml's docs/gguf.md, versions 2 and 3, little-endian): typed metadata, then
// tensors, some of them in blocks of 32 or 256 small integers with scales. Files come from anywhere, so every count and
// offset is checked before it is used.

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "nibble/core/io/files/atomic_file.h"
#include "nibble/core/tensor/tensor.h"

namespace nibble {

/// How the elements of a tensor are stored; numbers are ggml's. Only these are read and written.
enum class GgufType : uint32_t {
  f32 = 0,
  f16 = 1,
  q4_0 = 2,
  q5_0 = 6,
  q5_1 = 7,
  q8_0 = 8,
  q4_k = 12,
  q5_k = 13,
  q6_k = 14,
  f64 = 28,
  bf16 = 30,
  mxfp4 = 39
};

/// ggml's number as one of them; nothing for another.
std::optional<GgufType> find_gguf_type(uint32_t number);
/// "F32", "Q4_0", "Q4_K".
std::string_view gguf_type_name(GgufType type);
/// Elements in one block (1, 32 or 256) and bytes of one block.
int64_t gguf_block_elements(GgufType type);
int64_t gguf_block_bytes(GgufType type);

/// A metadata value. Integers of any width are read into these; what is written is u32 for uint32_t, and so on.
using GgufValue =
    std::variant<bool, uint32_t, int64_t, uint64_t, float, double, std::string, std::vector<bool>, std::vector<int64_t>,
                 std::vector<int32_t>, std::vector<float>, std::vector<std::string>>;

/// A tensor without its bytes. The shape is row-major as everywhere here: the file's own order reversed.
struct GgufTensor {
  std::string name;
  Shape shape;
  GgufType type = GgufType::f32;
  uint64_t offset = 0;  ///< from the start of the data; set by reader and writer
  size_t file = 0;      ///< of a model in several, the one that has it; set by the reader

  /// Bytes of one row, and of the whole.
  uint64_t row_bytes() const;
  uint64_t bytes() const;
};

/// A GGUF file, mapped read-only; of a model in several (split.count) all of them, as llama.cpp finds them by the name
/// of the first, which ends with -00001-of-00003.gguf.
class GgufFile {
 public:
  /// Throws IoError when the file cannot be opened, InputError naming byte or tensor when it is damaged, for another
  /// than the first of several and where one of these is missing. A tensor of a type not listed above is kept as
  /// unreadable, see unreadable().
  explicit GgufFile(const std::string& path);

  const std::string& path() const { return path_; }
  const std::map<std::string, GgufValue>& metadata() const { return metadata_; }
  const std::vector<GgufTensor>& tensors() const { return tensors_; }
  /// Names of tensors with another type, with ggml's number of it.
  const std::vector<std::pair<std::string, uint32_t>>& unreadable() const { return unreadable_; }
  /// Null when there is none.
  const GgufTensor* find(const std::string& name) const;

  /// The value of a key; undefined when it is absent. Throws InputError for a value of another kind.
  std::optional<std::string> text(const std::string& key) const;
  std::optional<int64_t> integer(const std::string& key) const;
  std::optional<double> number(const std::string& key) const;
  const std::vector<std::string>* texts(const std::string& key) const;
  /// The id that tokenizer.ggml.ROLE_token_id ("eos") has; undefined where it is absent or -1. Throws InputError for
  /// one beyond the tokens of the file.
  std::optional<int32_t> token_id(const std::string& role) const;

  /// Rows [begin, end) of a tensor's first dimension (all dimensions but the last together count as rows) as f32.
  Tensor rows(const GgufTensor& tensor, int64_t begin, int64_t end, MemoryPool& pool) const;

 private:
  using Metadata = std::map<std::string, GgufValue>;
  struct Part {
    std::shared_ptr<const FileMap> map;
    uint64_t data_begin = 0;
  };

  /// Adds the tensors of one file, whose names are not among `names` yet. Returns its metadata.
  Metadata read(const std::string& path, std::set<std::string>& names);
  void read_others(int64_t count, std::set<std::string>& names);

  std::string path_;
  std::vector<Part> parts_;
  Metadata metadata_;
  std::vector<GgufTensor> tensors_;
  std::vector<std::pair<std::string, uint32_t>> unreadable_;
};

/// Writes a GGUF file, version 3, that appears whole at finish().
class GgufWriter {
 public:
  /// Metadata in this order, general.architecture first by custom. Checks that the space is there. Throws IoError;
  /// UsageError when the last dimension of a tensor is no multiple of its type's block.
  GgufWriter(const std::filesystem::path& path, const std::vector<std::pair<std::string, GgufValue>>& metadata,
             std::vector<GgufTensor> tensors, Replace replace = Replace::anything);

  /// The next rows of tensor `name`, f32 [n, last dimension], rounded to its type as ggml's reference does it. Threads
  /// share the rows. Throws NumericError where a value is not finite, in them or in the type.
  void append(const std::string& name, const Tensor& rows);
  /// Publishes the file; every byte of every tensor must have been written.
  void finish();
  /// Of the whole file.
  uint64_t bytes() const { return bytes_; }

 private:
  struct Slot {
    GgufTensor tensor;
    uint64_t written = 0;
  };
  AtomicFile file_;
  std::map<std::string, Slot> slots_;
  uint64_t data_begin_ = 0, bytes_ = 0;
};

/// to = `count` elements in the blocks of `type`; count is a multiple of the block.
void gguf_encode(GgufType type, const float* from, int64_t count, std::byte* to);
void gguf_decode(GgufType type, const std::byte* from, int64_t count, float* to);

}  // namespace nibble
