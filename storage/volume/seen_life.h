#pragma once

#include <string>
#include <string_view>

#include "base/life.h"
#include "storage/io/block_file.h"

// The file HOLDFAST.life next to the marker of a volume's first data directory. It records the
// coordinator that the node followed last. docs/formats/volume.md describes the format.

namespace holdfast {

/// The life of a coordinator's store that the node followed last, and its highest epoch.
struct SeenLife {
  LifeId life;
  Epoch epoch;
  /// The first life that the node followed. Seals without a life belong to it.
  LifeId unlabeled;
  bool operator==(const SeenLife&) const = default;
};

/// Returns key = value lines that end in their own CRC-32C.
std::string RenderSeenLife(const SeenLife& seen);
/// Parses the file. DataLoss for anything that RenderSeenLife does not write, Unsupported for a
/// newer format.
Result<SeenLife> ParseSeenLife(std::string_view text);

/// Reads the file. Returns an empty SeenLife when there is none.
Result<SeenLife> ReadSeenLife(Directory& dir);
/// Replaces the file. Durable on return; a crash leaves the old file or the new one.
Status WriteSeenLife(Directory& dir, const SeenLife& seen);

}  // namespace holdfast
