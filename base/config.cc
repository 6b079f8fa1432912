#include "base/config.h"

#include <fmt/format.h>

#include <toml++/toml.h>
#include <algorithm>
#include <cerrno>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <sstream>

namespace holdfast {
namespace {

size_t EditDistance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      size_t next = std::min({row[j] + 1, row[j - 1] + 1, diagonal + (a[i - 1] != b[j - 1])});
      diagonal = row[j];
      row[j] = next;
    }
  }
  return row[b.size()];
}

std::string Quoted(std::string_view text) {
  std::string out = "\"";
  for (char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += c;
  }
  return out + "\"";
}

struct Unit {
  std::string_view name;
  uint64_t factor;
};
constexpr Unit kUnits[] = {{"", 1},
                           {"B", 1},
                           {"KiB", 1ULL << 10},
                           {"MiB", 1ULL << 20},
                           {"GiB", 1ULL << 30},
                           {"TiB", 1ULL << 40},
                           {"KB", 1000},
                           {"MB", 1000000},
                           {"GB", 1000000000},
                           {"TB", 1000000000000}};

}  // namespace

Result<uint64_t> ParseBytes(std::string_view text) {
  uint64_t number = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  std::string_view unit(end, text.data() + text.size() - end);
  while (!unit.empty() && unit.front() == ' ') unit.remove_prefix(1);
  if (error == std::errc()) {
    for (const Unit& known : kUnits) {
      uint64_t bytes = 0;
      if (unit == known.name && !__builtin_mul_overflow(number, known.factor, &bytes)) return bytes;
    }
  }
  return Fail(InvalidArgumentError("'" + std::string(text) +
                                   "' is not a size: write e.g. 64MiB, 2GiB or a number of bytes"));
}

std::string FormatBytes(uint64_t bytes) {
  static constexpr std::string_view kNames[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  while (value >= 1024 && unit + 1 < std::size(kNames)) {
    value /= 1024;
    ++unit;
  }
  bool whole = value == static_cast<double>(static_cast<uint64_t>(value));
  return whole ? fmt::format("{:.0f} {}", value, kNames[unit])
               : fmt::format("{:.1f} {}", value, kNames[unit]);
}

void ConfigSchema::Add(std::string key, std::string* field, std::string doc) {
  entries_.push_back({std::move(key), Kind::kString, field, std::move(doc)});
}
void ConfigSchema::Add(std::string key, bool* field, std::string doc) {
  entries_.push_back({std::move(key), Kind::kBool, field, std::move(doc)});
}
void ConfigSchema::Add(std::string key, int64_t* field, std::string doc, int64_t min_value,
                       int64_t max_value) {
  entries_.push_back({std::move(key), Kind::kInteger, field, std::move(doc), min_value, max_value});
}
void ConfigSchema::Add(std::string key, std::vector<std::string>* field, std::string doc) {
  entries_.push_back({std::move(key), Kind::kList, field, std::move(doc)});
}
void ConfigSchema::AddBytes(std::string key, uint64_t* field, std::string doc) {
  entries_.push_back({std::move(key), Kind::kBytes, field, std::move(doc)});
}

void ConfigSchema::Retire(std::string key, std::string remedy) {
  entries_.push_back({std::move(key), Kind::kRetired, nullptr, std::move(remedy)});
}

const ConfigSchema::Entry* ConfigSchema::Find(std::string_view key) const {
  for (const Entry& entry : entries_) {
    if (entry.key == key) return &entry;
  }
  return nullptr;
}

Status ConfigSchema::LoadFile(const std::string& path) {
  std::ifstream file(path);
  if (!file) return ErrnoStatus(errno, "cannot read configuration " + path);
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) {
    return InvalidArgumentError("configuration " + path + " is a directory; name the file in it");
  }
  std::stringstream text;
  text << file.rdbuf();
  if (file.bad()) return ErrnoStatus(errno, "cannot read configuration " + path);
  return LoadText(text.str(), path);
}

Status ConfigSchema::Set(std::string_view assignment) {
  size_t equals = assignment.find('=');
  if (equals == std::string_view::npos) {
    return InvalidArgumentError("--set " + std::string(assignment) + ": write key=value");
  }
  std::string key(assignment.substr(0, equals));
  std::string value(assignment.substr(equals + 1));
  const Entry* entry = Find(key);
  // LoadText reports unknown keys. Quoting the value makes sure that it gets that far.
  bool text = entry == nullptr || entry->kind == Kind::kString || entry->kind == Kind::kBytes;
  if (text && (value.empty() || value[0] != '"')) {
    value = Quoted(value);
  }
  return LoadText(key + " = " + value + "\n", "--set " + key);
}

namespace {
Status AssignList(const toml::node& node, std::vector<std::string>* field) {
  const toml::array* array = node.as_array();
  if (array == nullptr) return InvalidArgumentError("expects a list of strings");
  field->clear();
  for (const toml::node& item : *array) {
    if (!item.is_string()) return InvalidArgumentError("expects a list of strings");
    field->push_back(**item.as_string());
  }
  return Status::Ok();
}

Status AssignBytes(const toml::node& node, uint64_t* field) {
  if (auto number = node.value_exact<int64_t>(); number && *number >= 0) {
    *field = static_cast<uint64_t>(*number);
    return Status::Ok();
  }
  auto text = node.value_exact<std::string>();
  if (!text) return InvalidArgumentError("expects a size such as \"64MiB\"");
  HOLDFAST_ASSIGN_OR_RETURN(*field, ParseBytes(*text));
  return Status::Ok();
}
}  // namespace

std::string ConfigSchema::UnknownKey(const std::string& key) const {
  const auto nearest = std::min_element(entries_.begin(), entries_.end(), [&](auto& a, auto& b) {
    return EditDistance(a.key, key) < EditDistance(b.key, key);
  });
  return fmt::format("unknown key '{}'{}", key,
                     nearest == entries_.end()
                         ? std::string()
                         : fmt::format(" (did you mean '{}'?)", nearest->key));
}

template <typename Node>
Status ConfigSchema::Assign(const Entry& entry, const Node& node) {
  switch (entry.kind) {
    case Kind::kString: {
      const auto text = node.template value_exact<std::string>();
      if (!text) return InvalidArgumentError("expects a string");
      *static_cast<std::string*>(entry.field) = *text;
      break;
    }
    case Kind::kBool: {
      const auto value = node.template value_exact<bool>();
      if (!value) return InvalidArgumentError("expects true or false");
      *static_cast<bool*>(entry.field) = *value;
      break;
    }
    case Kind::kInteger: {
      const auto number = node.template value_exact<int64_t>();
      if (!number || *number < entry.min_value || *number > entry.max_value) {
        return InvalidArgumentError(
            fmt::format("expects a whole number from {} to {}", entry.min_value, entry.max_value));
      }
      *static_cast<int64_t*>(entry.field) = *number;
      break;
    }
    case Kind::kList:
      return AssignList(node, static_cast<std::vector<std::string>*>(entry.field));
    case Kind::kBytes:
      return AssignBytes(node, static_cast<uint64_t*>(entry.field));
    case Kind::kRetired:
      if (node.template value_exact<bool>().value_or(true)) {
        return InvalidArgumentError("is no longer supported: " + entry.doc);
      }
      break;
  }
  return Status::Ok();
}

Status ConfigSchema::LoadText(std::string_view text, std::string_view origin) {
  // Collects all errors instead of stopping at the first, so that one run shows every mistake.
  toml::table parsed;
  try {
    parsed = toml::parse(text, origin);
  } catch (const toml::parse_error& error) {
    return InvalidArgumentError(
        fmt::format("{}:{}: {}", origin, error.source().begin.line, error.description()));
  }
  std::string errors;
  auto complain = [&](const toml::node& node, std::string_view message) {
    if (!errors.empty()) errors += "; ";
    errors += fmt::format("{}:{}: {}", origin, node.source().begin.line, message);
  };
  auto assign = [&](const std::string& key, const toml::node& node) {
    const Entry* entry = Find(key);
    if (entry == nullptr) {
      complain(node, UnknownKey(key));
      return;
    }
    const Status status = Assign(*entry, node);
    if (!status.ok()) complain(node, "'" + key + "' " + status.message());
  };
  for (auto&& [name, node] : parsed) {
    if (const toml::table* section = node.as_table()) {
      for (auto&& [inner, value] : *section) {
        assign(std::string(name.str()) + "." + std::string(inner.str()), value);
      }
    } else {
      assign(std::string(name.str()), node);
    }
  }
  return errors.empty() ? Status::Ok() : InvalidArgumentError(errors);
}

std::string ConfigSchema::Render() const {
  std::string out = "# " + title_ + "\n";
  std::string section;
  for (const Entry& entry : entries_) {
    if (entry.kind == Kind::kRetired) continue;
    size_t dot = entry.key.find('.');
    std::string_view own_section =
        dot == std::string::npos ? std::string_view() : std::string_view(entry.key).substr(0, dot);
    if (own_section != section) {
      section = own_section;
      out += "\n[" + section + "]\n";
    }
    std::stringstream doc(entry.doc);
    for (std::string line; std::getline(doc, line);) out += "# " + line + "\n";
    out += dot == std::string::npos ? entry.key : entry.key.substr(dot + 1);
    out += " = ";
    switch (entry.kind) {
      case Kind::kString:
        out += Quoted(*static_cast<std::string*>(entry.field));
        break;
      case Kind::kBool:
        out += *static_cast<bool*>(entry.field) ? "true" : "false";
        break;
      case Kind::kInteger:
        out += std::to_string(*static_cast<int64_t*>(entry.field));
        break;
      case Kind::kList: {
        std::string items;
        for (const std::string& item : *static_cast<std::vector<std::string>*>(entry.field)) {
          items += (items.empty() ? "" : ", ") + Quoted(item);
        }
        out += "[" + items + "]";
        break;
      }
      case Kind::kBytes: {
        uint64_t bytes = *static_cast<uint64_t*>(entry.field);
        bool mebi = bytes >= (1U << 20) && bytes % (1U << 20) == 0;
        out += mebi ? Quoted(std::to_string(bytes >> 20) + "MiB") : std::to_string(bytes);
        break;
      }
      case Kind::kRetired:
        break;
    }
    out += "\n";
  }
  return out;
}

}  // namespace holdfast
