#include "client/cuda/copy_groups.h"

namespace holdfast::cuda {

std::vector<CopyGroup> GroupPieces(std::span<const holdfast_device_piece> pieces,
                                   uint64_t bytes_max, size_t pieces_max) {
  std::vector<CopyGroup> groups;
  uint64_t bytes = 0;
  for (size_t i = 0; i < pieces.size(); ++i) {
    const holdfast_device_piece& piece = pieces[i];
    bool fits = !groups.empty() && groups.back().device_index == piece.device_index &&
                bytes + piece.bytes <= bytes_max && i - groups.back().begin < pieces_max;
    if (!fits) {
      groups.push_back({i, i, piece.device_index});
      bytes = 0;
    }
    groups.back().end = i + 1;
    bytes += piece.bytes;
  }
  return groups;
}

}  // namespace holdfast::cuda
