#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.h"

// Packets between an agent and its keeper on <run_dir>/keeper.sock: one reply to each request, in
// order. Fixed size, little-endian. Byte layout: docs/formats/ledger.md.

namespace holdfast::agent {

inline constexpr uint32_t kKeeperMagic = 0x314B4648;  // "HFK1"
inline constexpr uint32_t kKeeperProtocol = 1;
inline constexpr size_t kKeptNameBytes = 64;  // 63 characters and a NUL
inline constexpr size_t kKeptNoteBytes = 256;
inline constexpr size_t kKeptFdsMax = 4;
inline constexpr size_t kKeptEntriesMax = 4096;
inline constexpr size_t kKeeperClientsMax = 16;

enum class KeeperOp : uint32_t {
  kPut = 1,       // name, note, 1…4 descriptors; replaces an entry of the same name
  kNext = 2,      // the first entry after `name` in byte order, with descriptors; NotFound: no more
  kDrop = 3,      // closes an entry's descriptors; an unknown name is not an error
  kUsage = 4,     // counts; also a health check
  kShutdown = 5,  // replies, then exits, which frees all memory that no other process maps
};

struct KeeperRequest {
  uint32_t magic = kKeeperMagic;
  uint32_t protocol = kKeeperProtocol;
  KeeperOp op = KeeperOp::kUsage;
  uint32_t note_bytes = 0;
  char name[kKeptNameBytes] = {};
  std::byte note[kKeptNoteBytes] = {};
};

struct KeeperReply {
  uint32_t magic = kKeeperMagic;
  uint32_t protocol = kKeeperProtocol;
  uint32_t code = 0;  // ErrorCode
  uint32_t note_bytes = 0;
  uint32_t pid = 0;      // of the keeper
  uint32_t entries = 0;  // number held now
  uint64_t bytes = 0;    // total size of all files held
  char name[kKeptNameBytes] = {};
  std::byte note[kKeptNoteBytes] = {};
  char text[256] = {};
};
static_assert(sizeof(KeeperRequest) == 336);
static_assert(sizeof(KeeperReply) == 608);

inline std::string KeeperSocketPath(const std::string& run_dir) { return run_dir + "/keeper.sock"; }

}  // namespace holdfast::agent
