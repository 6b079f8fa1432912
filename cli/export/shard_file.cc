#include "cli/export/shard_file.h"

#include <fmt/format.h>

namespace holdfast::cli {

std::string RestoredName(Rank rank, uint32_t world) {
  return fmt::format("rank-{:05}-of-{:05}.safetensors", rank.value, world);
}

Result<std::unique_ptr<ShardFile>> ShardFile::Create(const TargetFolder& target,
                                                     const ExpectedShard& expected,
                                                     Progress& progress) {
  HOLDFAST_ASSIGN_OR_RETURN(
      TargetFile file, TargetFile::Create(target, RestoredName(expected.key.rank, expected.world)));
  return std::make_unique<ShardFile>(ShardFile(std::move(file), expected, progress));
}

Status ShardFile::Begin(const ShardSeal& seal) {
  HOLDFAST_RETURN_IF_ERROR(expected_.Check(seal));
  return file_.Reserve(seal.image_bytes);
}

Status ShardFile::Chunk(uint64_t offset, std::span<const std::byte> bytes) {
  HOLDFAST_RETURN_IF_ERROR(file_.Write(offset, bytes));
  written_ += bytes.size();
  progress_.Add(bytes.size());
  return Status::Ok();
}

}  // namespace holdfast::cli
