#pragma once

#include <string>
#include <string_view>

#include "storage/base/life.h"
#include "storage/io/block_file.h"

// The file HOLDFAST.life beside the marker of a volume's first data directory: which coordinator
// the node followed last. docs/formats/volume.md describes it.

namespace holdfast {

/// The life of a coordinator's store and the highest epoch of it that was seen.
struct SeenLife {
  LifeId life;
  Epoch epoch;
  /// The first life that the node followed: seals that name none belong to it.
  LifeId unlabeled;
  bool operator==(const SeenLife&) const = default;
};

/// key = value lines that end in their own CRC-32C.
std::string RenderSeenLife(const SeenLife& seen);
/// DataLoss for anything RenderSeenLife would not write, Unsupported for a newer format.
Result<SeenLife> ParseSeenLife(std::string_view text);

/// Nothing was seen yet when there is no file.
Result<SeenLife> ReadSeenLife(Directory& dir);
/// Durable on return; a crash leaves the old file or the new one.
Status WriteSeenLife(Directory& dir, const SeenLife& seen);

}  // namespace holdfast
