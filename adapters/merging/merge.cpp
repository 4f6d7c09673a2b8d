#include "nibble/adapters/merging/merge.h"

#include <algorithm>

#include "nibble/core/io/hub/model_directory.h"
#include "nibble/core/text/chat/turn_ends.h"

namespace nibble {

namespace {

constexpr int64_t kBlockElements = int64_t{1} << 20;  // what is made of it stays in the last cache level

}  // namespace

MergeReport merge_adapter(const TensorSource& base, const PeftAdapter& adapter, const std::filesystem::path& out,
                          const MergeOptions& options, MemoryPool& pool) {
  const MergedModel merged(base, adapter, options.dtype, pool);
  const TensorSource& source = merged.source();
  ModelDirectoryWriter writer(out, options.replace, source.tensors, options.shard_bytes);
  for (const TensorSpec& spec : source.tensors) {
    const int64_t count = spec.shape.empty() ? 1 : spec.shape[0];
    const int64_t width = count > 0 ? std::max<int64_t>(element_count(spec.shape) / count, 1) : 1;
    const int64_t block = std::max<int64_t>(kBlockElements / width, 1);
    for (int64_t begin = 0; begin < count; begin += block) {
      const Tensor rows = source.rows(spec.name, begin, std::min(begin + block, count), pool);
      writer.append(spec.name, checked_rows(rows, spec.name, spec.dtype, pool));
    }
  }
  writer.write_text("config.json", source.config);
  copy_merged_companions(base, adapter, writer.path());
  complete_end_ids(writer.path());
  writer.finish();
  return merged.report();
}

}  // namespace nibble
