#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <span>
#include <string>

#include "base/random.h"
#include "base/status.h"
#include "storage/io/block_file.h"

namespace holdfast {

/// Memory for direct I/O, filled with a byte pattern that depends on seed and position.
class AlignedBuffer {
 public:
  explicit AlignedBuffer(uint64_t bytes)
      : memory_(static_cast<std::byte*>(std::aligned_alloc(kBlockBytes, bytes)), &std::free),
        bytes_(bytes) {
    std::memset(memory_.get(), 0, bytes);
  }
  AlignedBuffer(uint64_t bytes, uint64_t seed) : AlignedBuffer(bytes) {
    Random random(seed);
    for (uint64_t at = 0; at + 8 <= bytes; at += 8) {
      uint64_t value = random.Next();
      std::memcpy(memory_.get() + at, &value, 8);
    }
  }
  std::span<std::byte> span() { return {memory_.get(), bytes_}; }
  std::span<std::byte> first(uint64_t bytes) { return span().first(bytes); }

 private:
  std::unique_ptr<std::byte, void (*)(void*)> memory_;
  uint64_t bytes_;
};

/// A temporary directory under `base`; the destructor removes it with its contents.
class TempDir {
 public:
  explicit TempDir(const std::string& base) {
    std::string name = base + "/holdfast-io-XXXXXX";
    if (::mkdtemp(name.data()) != nullptr) path_ = name;
  }
  ~TempDir() {
    std::error_code ignored;
    if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
  }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;
  bool valid() const { return !path_.empty(); }
  const std::string& path() const { return path_; }

  /// Returns $TMPDIR or /tmp.
  static std::string Base() {
    std::error_code ignored;
    return std::filesystem::temp_directory_path(ignored).string();
  }

 private:
  std::string path_;
};

#define EXPECT_OK(expr)                                  \
  do {                                                   \
    ::holdfast::Status ok_status = (expr);               \
    EXPECT_TRUE(ok_status.ok()) << ok_status.ToString(); \
  } while (false)
#define ASSERT_OK(expr)                                  \
  do {                                                   \
    ::holdfast::Status ok_status = (expr);               \
    ASSERT_TRUE(ok_status.ok()) << ok_status.ToString(); \
  } while (false)
#define ASSERT_RESULT(result) ASSERT_TRUE(result.has_value()) << result.error().ToString()
#define EXPECT_CODE(expr, expected)                                                          \
  do {                                                                                       \
    ::holdfast::Status code_status = ::holdfast::status_internal::ToStatus((expr));          \
    EXPECT_EQ(ErrorName(code_status.code()), ErrorName(expected)) << code_status.ToString(); \
  } while (false)

}  // namespace holdfast
