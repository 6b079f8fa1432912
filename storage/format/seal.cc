#include "storage/format/seal.h"

#include <fmt/format.h>

#include <bit>
#include <cstring>
#include <string_view>
#include <type_traits>

#include "storage/format/header_text.h"

namespace holdfast {

static_assert(std::endian::native == std::endian::little, "formats are little-endian in memory");

namespace {

/// Every format begins with this magic and a u32 format, and ends in a CRC-32C of all bytes before
/// it. CR and LF reveal a transfer that translated line ends.
constexpr std::string_view kMagic = "HFSEAL\r\n";
constexpr size_t kFrameBytes = kMagic.size() + 4 + 4;
constexpr uint64_t kPartBytes = 4 * 8 + 4;

template <typename Number>
void Put(Number number, std::string* out) {
  static_assert(std::is_integral_v<Number>);
  out->append(reinterpret_cast<const char*>(&number), sizeof(number));
}

Status BadSeal(const std::string& why) { return DataLossError("the seal is bad: " + why); }

/// Takes numbers and bytes from the front. Each call returns false when too few bytes are left.
class Cursor {
 public:
  explicit Cursor(std::string_view bytes) : left_(bytes) {}

  template <typename Number>
  bool Take(Number* number) {
    if (left_.size() < sizeof(*number)) return false;
    std::memcpy(number, left_.data(), sizeof(*number));
    left_.remove_prefix(sizeof(*number));
    return true;
  }
  bool TakeBytes(uint64_t count, std::string* bytes) {
    if (left_.size() < count) return false;
    bytes->assign(left_.substr(0, count));
    left_.remove_prefix(count);
    return true;
  }
  bool TakeNumbers(uint64_t count, std::vector<uint32_t>* numbers) {
    if (left_.size() / sizeof(uint32_t) < count) return false;
    numbers->resize(count);
    if (count > 0) std::memcpy(numbers->data(), left_.data(), count * sizeof(uint32_t));
    left_.remove_prefix(count * sizeof(uint32_t));
    return true;
  }
  uint64_t left() const { return left_.size(); }

 private:
  std::string_view left_;
};

Status CheckParts(const ShardSeal& seal) {
  if (seal.parts.size() < 2 && !seal.image_header.empty()) {
    return BadSeal("it has an image header but fewer than 2 parts");
  }
  uint64_t reached = seal.image_header.size();
  for (size_t i = 0; i < seal.parts.size(); ++i) {
    const SealPart& part = seal.parts[i];
    if (part.image_begin != reached || part.image_end < part.image_begin ||
        part.image_end > seal.image_bytes ||
        (seal.parts.size() > 1 && part.image_end == part.image_begin)) {
      return BadSeal(fmt::format("part {} has [{}, {}) of the image, expected [{}, …)", i,
                                 part.image_begin, part.image_end, reached));
    }
    uint64_t file_bytes = 0;
    if (__builtin_add_overflow(part.data_offset, part.image_end - part.image_begin, &file_bytes) ||
        file_bytes != part.file_bytes) {
      return BadSeal(fmt::format("part {} has {} bytes, which is not the sum of its ranges", i,
                                 part.file_bytes));
    }
    reached = part.image_end;
  }
  if (!seal.parts.empty() && reached != seal.image_bytes) {
    return BadSeal(fmt::format("its parts end at {} of {} bytes", reached, seal.image_bytes));
  }
  return Status::Ok();
}

/// Returns the oldest format that can represent the seal: only format 2 has a life.
uint32_t FormatOf(const ShardSeal& seal) { return seal.life.value == 0 ? 1 : 2; }

/// Reads the fields after the format number; `cursor` ends where the CRC begins.
Status ReadBody(Cursor cursor, uint32_t format, ShardSeal* seal) {
  Status truncated = BadSeal("it is truncated");
  ShardIdentity& identity = seal->identity;
  uint32_t job_bytes = 0;
  uint32_t part_count = 0;
  if (!cursor.Take(&job_bytes) || !cursor.TakeBytes(job_bytes, &identity.job) ||
      !cursor.Take(&identity.version.incarnation.value) ||
      !cursor.Take(&identity.version.step.value) || !cursor.Take(&identity.rank.value) ||
      !cursor.Take(&identity.world) || (format > 1 && !cursor.Take(&seal->life.value)) ||
      !cursor.Take(&seal->wall_nanos) || !cursor.Take(&seal->image_bytes) ||
      !cursor.Take(&part_count)) {
    return truncated;
  }
  Status valid = ValidateIdentity(identity);
  if (!valid.ok()) return BadSeal(valid.message());
  if (format != FormatOf(*seal)) return BadSeal("it has format 2 and names no life");
  if (part_count > kPartsMax) {
    return BadSeal(fmt::format("it has {} parts; at most {} are allowed", part_count, kPartsMax));
  }
  if (part_count > cursor.left() / kPartBytes) return truncated;
  seal->parts.resize(part_count);
  for (SealPart& part : seal->parts) {
    if (!cursor.Take(&part.image_begin) || !cursor.Take(&part.image_end) ||
        !cursor.Take(&part.data_offset) || !cursor.Take(&part.file_bytes) ||
        !cursor.Take(&part.header_crc)) {
      return truncated;
    }
  }
  uint64_t header_bytes = 0;
  uint64_t chunk_count = 0;
  if (!cursor.Take(&header_bytes) || !cursor.TakeBytes(header_bytes, &seal->image_header) ||
      !cursor.Take(&chunk_count) || !cursor.TakeNumbers(chunk_count, &seal->chunk_crcs)) {
    return truncated;
  }
  if (cursor.left() != 0) return BadSeal(fmt::format("{} bytes follow it", cursor.left()));
  // The bound is checked first: ChunkCount would overflow near the largest number.
  if (seal->image_bytes >= kImageBytesMax || ChunkCount(seal->image_bytes) != chunk_count) {
    return BadSeal(fmt::format("it has {} chunk checksums for an image of {} bytes", chunk_count,
                               seal->image_bytes));
  }
  return CheckParts(*seal);
}

}  // namespace

std::string EncodeSeal(const ShardSeal& seal) {
  std::string out;
  out.reserve(kFrameBytes + 256 + seal.parts.size() * kPartBytes + seal.image_header.size() +
              seal.chunk_crcs.size() * sizeof(uint32_t));
  out.append(kMagic);
  Put(FormatOf(seal), &out);
  Put(static_cast<uint32_t>(seal.identity.job.size()), &out);
  out.append(seal.identity.job);
  Put(seal.identity.version.incarnation.value, &out);
  Put(seal.identity.version.step.value, &out);
  Put(seal.identity.rank.value, &out);
  Put(seal.identity.world, &out);
  if (FormatOf(seal) > 1) Put(seal.life.value, &out);
  Put(seal.wall_nanos, &out);
  Put(seal.image_bytes, &out);
  Put(static_cast<uint32_t>(seal.parts.size()), &out);
  for (const SealPart& part : seal.parts) {
    Put(part.image_begin, &out);
    Put(part.image_end, &out);
    Put(part.data_offset, &out);
    Put(part.file_bytes, &out);
    Put(part.header_crc, &out);
  }
  Put(static_cast<uint64_t>(seal.image_header.size()), &out);
  out.append(seal.image_header);
  Put(static_cast<uint64_t>(seal.chunk_crcs.size()), &out);
  out.append(reinterpret_cast<const char*>(seal.chunk_crcs.data()),
             seal.chunk_crcs.size() * sizeof(uint32_t));
  Put(Crc32c(std::as_bytes(std::span(out))), &out);
  return out;
}

Result<ShardSeal> DecodeSeal(std::span<const std::byte> bytes) {
  if (bytes.size() > kSealBytesMax) {
    return Fail(BadSeal(
        fmt::format("it has {} bytes; at most {} are allowed", bytes.size(), kSealBytesMax)));
  }
  std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  if (text.size() < kFrameBytes || !text.starts_with(kMagic)) {
    return Fail(BadSeal("it does not begin with a seal's magic bytes"));
  }
  const size_t crc_at = bytes.size() - sizeof(uint32_t);
  uint32_t crc = 0;
  std::memcpy(&crc, bytes.data() + crc_at, sizeof(crc));
  // The checksum is checked before the format, so that a flipped bit does not look like a newer
  // one.
  if (crc != Crc32c(bytes.first(crc_at))) {
    return Fail(BadSeal("its checksum does not match: it is torn or changed"));
  }
  Cursor cursor(text.substr(kMagic.size(), crc_at - kMagic.size()));
  uint32_t format = 0;
  if (!cursor.Take(&format) || format == 0) return Fail(BadSeal("its format is 0"));
  if (format > kSealFormat) {
    return Fail(UnsupportedError(
        fmt::format("the seal has format {} but this build reads up to {}: use a newer Holdfast",
                    format, kSealFormat)));
  }
  ShardSeal seal;
  HOLDFAST_RETURN_IF_ERROR(ReadBody(cursor, format, &seal));
  return seal;
}

Status CheckDigest(const ShardSeal& seal, uint64_t committed) {
  if (committed == 0 || committed == seal.digest()) return Status::Ok();
  return DataLossError(
      fmt::format("the replica of {} has digest {:016x}, the committed one {:016x}",
                  ToString(seal.identity.key()), seal.digest(), committed));
}

}  // namespace holdfast
