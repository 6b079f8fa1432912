#include "storage/format/replica_sample.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <limits>
#include <unordered_map>

#include "storage/format/checksum.h"
#include "storage/format/image.h"

namespace holdfast {
namespace {
using Json = nlohmann::json;

/// [tensor, first, bytes, tensor of the image, first byte in it]
bool IsSample(const Json& entry) {
  return entry.is_array() && entry.size() == 5 && entry[0].is_string() &&
         entry[1].is_number_unsigned() && entry[2].is_number_unsigned() && entry[3].is_string() &&
         entry[4].is_number_unsigned();
}

/// Returns a private copy: the trainer may change the original while it is parsed.
std::string TextOf(std::span<const std::byte> image, uint64_t offset, const PlacedExtra& extra) {
  const std::span<const std::byte> bytes = image.subspan(offset + extra.begin, extra.bytes());
  std::string text(bytes.size(), '\0');
  std::transform(bytes.begin(), bytes.end(), text.begin(),
                 [](std::byte byte) { return static_cast<char>(byte); });
  return text;
}
}  // namespace

std::vector<ReplicaSample> TakeReplicaSamples(std::span<const std::byte> image,
                                              const ParsedImage& parsed) {
  const auto extra =
      std::find_if(parsed.extras.begin(), parsed.extras.end(),
                   [](const PlacedExtra& one) { return one.name == kReplicaSamplesExtra; });
  if (extra == parsed.extras.end() || extra->bytes() > kReplicaSamplesBytesMax) return {};
  const Json list = Json::parse(TextOf(image, parsed.data_offset, *extra), nullptr, false);
  if (!list.is_array()) return {};
  std::unordered_map<std::string_view, const PlacedTensor*> tensors;
  for (const PlacedTensor& tensor : parsed.tensors) tensors.emplace(tensor.spec.name, &tensor);
  std::vector<ReplicaSample> samples;
  uint64_t room = image.size();  // bounds the work: entries may overlap
  for (const Json& entry : list) {
    if (samples.size() == kReplicaSamplesMax) break;
    if (!IsSample(entry)) continue;
    const std::string name = entry[0].get<std::string>();
    const uint64_t first = entry[1].get<uint64_t>();
    const uint64_t bytes = entry[2].get<uint64_t>();
    const auto found = tensors.find(entry[3].get_ref<const std::string&>());
    const uint64_t begin = entry[4].get<uint64_t>();
    if (name.empty() || name.size() > kReplicaSampleNameMax || found == tensors.end()) continue;
    const PlacedTensor& tensor = *found->second;
    if (begin > tensor.bytes() || bytes > tensor.bytes() - begin || bytes == 0) continue;
    if (first > std::numeric_limits<uint64_t>::max() - bytes) continue;
    if (bytes > room) break;
    room -= bytes;
    const uint32_t crc = Crc32c(image.subspan(parsed.data_offset + tensor.begin + begin, bytes));
    samples.push_back({name, first, bytes, crc});
  }
  return samples;
}

}  // namespace holdfast
