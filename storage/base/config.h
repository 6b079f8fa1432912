#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "storage/base/status.h"

namespace holdfast {

/// Binds the fields of a configuration struct to documented TOML keys, so that one place gives
/// loading, checking and the shipped example. Keys are "section.name" or "name". The bound fields
/// outlive the schema; their values at the time of Add() are the defaults.
class ConfigSchema {
 public:
  /// `title` heads the rendered file.
  explicit ConfigSchema(std::string title) : title_(std::move(title)) {}

  void Add(std::string key, std::string* field, std::string doc);
  void Add(std::string key, bool* field, std::string doc);
  void Add(std::string key, int64_t* field, std::string doc, int64_t least, int64_t most);
  void Add(std::string key, std::vector<std::string>* field, std::string doc);
  /// Bytes: an integer, or text such as "64MiB", "2GiB", "512".
  void AddBytes(std::string key, uint64_t* field, std::string doc);

  /// Reads `text`; all errors are named at once (unknown keys with the nearest known one, wrong
  /// types, ranges), each with `origin` and its line. On error the fields are unspecified.
  Status LoadText(std::string_view text, std::string_view origin);
  Status LoadFile(const std::string& path);
  /// One "key=value" as from --set; the value is TOML, bare words are taken as strings.
  Status Set(std::string_view assignment);

  /// The current values as commented TOML; LoadText(Render()) changes nothing.
  std::string Render() const;

 private:
  enum class Kind { kString, kBool, kInteger, kList, kBytes };
  struct Entry {
    std::string key;
    Kind kind;
    void* field;
    std::string doc;
    int64_t least = 0;
    int64_t most = 0;
  };
  const Entry* Find(std::string_view key) const;

  std::string title_;
  std::vector<Entry> entries_;
};

/// "64MiB" → 67108864. Units: B, KiB, MiB, GiB, TiB and KB, MB, GB, TB; no unit means bytes.
Result<uint64_t> ParseBytes(std::string_view text);
/// 67108864 → "64 MiB"; at most one decimal.
std::string FormatBytes(uint64_t bytes);

}  // namespace holdfast
