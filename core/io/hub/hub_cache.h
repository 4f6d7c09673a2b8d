#pragma once
// What Hugging Face's tools downloaded, found by its ID.

#include <filesystem>
#include <string>
#include <string_view>

namespace nibble {

inline constexpr std::string_view kHubModels = "models";
inline constexpr std::string_view kHubDatasets = "datasets";

/// Where huggingface_hub keeps repositories: HF_HUB_CACHE, else HF_HOME/hub, else huggingface/hub in XDG_CACHE_HOME or
/// in ~/.cache. Empty where none of them is set.
std::filesystem::path hub_cache();

/// `named`, unless it is a repository in such a cache: of the folder of a repository (.../models--a--b), and of an ID
/// (a/b, or a path in it: a/b/c) that no file has as its path, the place in the snapshot that refs/main names. Where
/// there is no refs/main, the only snapshot is taken; InputError where there are several.
/// https://huggingface.co/docs/huggingface_hub/guides/manage-cache
/// kind: kHubModels or kHubDatasets.
std::filesystem::path find_in_hub(const std::filesystem::path& named, std::string_view kind);

/// The ID of the repository that `snapshot` is of (.../models--a--b/snapshots/REVISION: a/b); empty where it is none.
std::string hub_id(const std::filesystem::path& snapshot);

}  // namespace nibble
