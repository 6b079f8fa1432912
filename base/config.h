#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace holdfast {

/// Binds the fields of a configuration struct to documented TOML keys. Loading, checking and the
/// shipped example all derive from this one definition. Keys are "section.name" or "name". The
/// bound fields must outlive the schema; their values at the time of Add() are the defaults.
class ConfigSchema {
 public:
  /// `title` becomes the first comment of the rendered file.
  explicit ConfigSchema(std::string title) : title_(std::move(title)) {}

  void Add(std::string key, std::string* field, std::string doc);
  void Add(std::string key, bool* field, std::string doc);
  void Add(std::string key, int64_t* field, std::string doc, int64_t min_value, int64_t max_value);
  void Add(std::string key, std::vector<std::string>* field, std::string doc);
  /// Adds a number of bytes: an integer, or text such as "64MiB", "2GiB", "512".
  void AddBytes(std::string key, uint64_t* field, std::string doc);

  /// Names a key of an earlier version. `false`, which the shipped example had, is ignored. Any
  /// other value is an error that ends with `remedy`. Render() leaves the key out.
  void Retire(std::string key, std::string remedy);

  /// Reads `text` and reports all errors at once, each with `origin` and its line: unknown keys
  /// (with the most similar known key), wrong types and values out of range. On error the fields
  /// are unspecified.
  Status LoadText(std::string_view text, std::string_view origin);
  Status LoadFile(const std::string& path);
  /// Applies one "key=value" as from --set. The value is TOML; the values of text and size keys
  /// need no quotes.
  Status Set(std::string_view assignment);

  /// Returns the current values as commented TOML; LoadText(Render()) changes nothing.
  std::string Render() const;

 private:
  enum class Kind { kString, kBool, kInteger, kList, kBytes, kRetired };
  struct Entry {
    std::string key;
    Kind kind;
    void* field;
    std::string doc;  // of a retired key: the remedy
    int64_t min_value = 0;
    int64_t max_value = 0;
  };
  const Entry* Find(std::string_view key) const;
  /// Returns the message about a key that does not exist, with the nearest one that does.
  std::string UnknownKey(const std::string& key) const;
  /// Sets the field of an entry to the value of a TOML node.
  template <typename Node>
  static Status Assign(const Entry& entry, const Node& node);

  std::string title_;
  std::vector<Entry> entries_;
};

/// Parses a size: "64MiB" → 67108864. Units: B, KiB, MiB, GiB, TiB and KB, MB, GB, TB; no unit
/// means bytes.
Result<uint64_t> ParseBytes(std::string_view text);
/// Formats a size: 67108864 → "64 MiB"; at most one decimal.
std::string FormatBytes(uint64_t bytes);

}  // namespace holdfast
